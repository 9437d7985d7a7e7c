"""From TensorFlow Lite's files to ONNX: the reader, a module for each family of operators, and what they write with."""
