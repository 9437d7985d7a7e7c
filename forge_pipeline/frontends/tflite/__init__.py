"""TODO(forge_pipeline/frontends/tflite)."""
