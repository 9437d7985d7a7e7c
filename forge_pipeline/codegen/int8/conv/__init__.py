"""Convolutions of bytes: what is matched, and one module for each algorithm."""
