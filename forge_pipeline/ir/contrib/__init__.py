"""ONNX Runtime's own operators (domain com.microsoft), written out in ONNX's."""
