"""ONNX Runtime as the reference that every result is compared with."""
