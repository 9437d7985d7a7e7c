"""Products of matrices in float32, and attention, which is made of two."""
