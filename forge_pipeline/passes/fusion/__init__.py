"""Passes that make one operator of several."""
