"""Ensembles of decision trees: their normal form, its tables, and the kernel that evaluates them."""
