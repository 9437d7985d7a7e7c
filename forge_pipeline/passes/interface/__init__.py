"""Passes that change a model's inputs and outputs."""
