"""TODO(forge_pipeline/codegen/memory)."""
