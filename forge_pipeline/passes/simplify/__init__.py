"""TODO(forge_pipeline/passes/simplify)."""
