"""TODO(forge_pipeline/passes/decompose)."""
