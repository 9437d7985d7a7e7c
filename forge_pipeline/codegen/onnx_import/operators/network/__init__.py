"""Operators of neural networks: windows over images, activations, normalizations, attention, recurrence."""
