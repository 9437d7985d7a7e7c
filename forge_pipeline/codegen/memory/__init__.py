"""Memory of a compiled model: one planned piece for values, the weights' section, and what is packed at load."""
