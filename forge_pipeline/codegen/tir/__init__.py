"""TODO(forge_pipeline/codegen/tir)."""
