"""Passes over operators that move data: transposes, reshapes, slices, concatenations and padding."""
