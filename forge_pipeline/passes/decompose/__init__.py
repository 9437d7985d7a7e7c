"""Passes that write an operator out by others."""
