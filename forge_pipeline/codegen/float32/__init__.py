"""TODO(forge_pipeline/codegen/float32)."""
