"""TODO(forge_pipeline/codegen/int8)."""
