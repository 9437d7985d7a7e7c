"""TODO(forge_pipeline/ir/reference)."""
