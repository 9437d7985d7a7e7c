"""Quantized operators computed in integers."""
