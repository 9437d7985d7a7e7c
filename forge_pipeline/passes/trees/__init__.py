"""Passes over ensembles of decision trees."""
