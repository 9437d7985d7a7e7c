"""Ranges, quantizers and the tools that keep accuracy."""
