"""Operators between floats and integers, and on integers alone."""
