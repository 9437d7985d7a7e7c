"""TODO(forge_pipeline/ir/display)."""
