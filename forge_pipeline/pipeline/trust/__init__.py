"""Who built it, from what, and does it come out the same again."""
