"""Converters of ONNX operators, a module for a family."""
