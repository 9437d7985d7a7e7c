"""TODO(forge_pipeline/ir/external_data)."""
