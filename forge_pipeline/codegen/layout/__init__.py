"""TODO(forge_pipeline/codegen/layout)."""
