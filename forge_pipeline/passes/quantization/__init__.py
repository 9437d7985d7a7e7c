"""Passes over quantized models."""
