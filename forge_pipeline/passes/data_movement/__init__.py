"""TODO(forge_pipeline/passes/data_movement)."""
