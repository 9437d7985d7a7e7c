"""From a framework's file to ONNX, one module per framework."""
