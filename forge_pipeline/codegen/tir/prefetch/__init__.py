"""What comes next is asked for while a tile computes: weights and pixels from behind the second cache."""
