"""TensorFlow Lite's operators as ONNX: a module for each family, and the table of all."""
