"""Operator families in float32: the templates of their kernels and their schedules."""
