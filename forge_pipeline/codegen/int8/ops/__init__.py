"""Operators on bytes other than convolution."""
