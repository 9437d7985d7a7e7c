"""TODO(forge_pipeline/codegen/onnx_import)."""
