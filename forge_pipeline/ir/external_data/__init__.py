"""Weights that lie outside of the model's own file: their rules, reading without loading, and writing."""

INLINE_BYTES = 1 << 30
"""Weights up to this are worked with in memory and lie inside the model's own file; more stay in files of their own."""
