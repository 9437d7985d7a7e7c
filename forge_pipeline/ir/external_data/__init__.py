"""Weights that lie outside of the model's own file: their rules, reading without loading, and writing."""
