"""TODO(forge_pipeline/relax/to_onnx)."""
