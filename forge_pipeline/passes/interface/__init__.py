"""TODO(forge_pipeline/passes/interface)."""
