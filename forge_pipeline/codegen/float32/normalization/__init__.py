"""Normalization by mean and deviation."""
