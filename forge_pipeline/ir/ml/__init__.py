"""Operators of ai.onnx.ml, which classical learners export, as operators of ONNX."""
