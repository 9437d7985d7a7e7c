"""TODO(forge_pipeline/passes/quantization)."""
