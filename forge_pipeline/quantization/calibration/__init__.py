"""TODO(forge_pipeline/quantization/calibration)."""
