"""TODO(forge_pipeline/ir/qdq)."""
