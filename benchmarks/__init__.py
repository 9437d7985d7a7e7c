"""Measurements of speed, memory and accuracy; each prints a table and writes JSON."""
