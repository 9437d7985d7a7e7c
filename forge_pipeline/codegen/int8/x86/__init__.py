"""TODO(forge_pipeline/codegen/int8/x86)."""
