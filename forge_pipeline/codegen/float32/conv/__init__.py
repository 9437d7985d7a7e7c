"""Convolutions in float32: the algorithms, the shapes that they share, and who chooses among them."""
