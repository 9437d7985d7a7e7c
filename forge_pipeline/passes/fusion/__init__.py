"""TODO(forge_pipeline/passes/fusion)."""
