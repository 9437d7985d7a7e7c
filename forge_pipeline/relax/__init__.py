"""TODO(forge_pipeline/relax)."""
