"""Ranges of activations: one pass over the samples, statistics, and the methods that choose a range from them."""
