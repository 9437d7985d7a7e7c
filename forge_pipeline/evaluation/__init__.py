"""Measures what a build is worth: task metrics, noise by output and by layer, latency and size."""
