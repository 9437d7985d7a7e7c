"""Kernels of bytes for 64-bit ARM: NEON, with or without a dot product."""
