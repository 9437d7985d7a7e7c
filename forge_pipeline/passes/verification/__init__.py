"""TODO(forge_pipeline/passes/verification)."""
