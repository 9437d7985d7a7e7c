"""TODO(forge_pipeline/quantization/accuracy)."""
