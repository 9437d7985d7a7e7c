"""What wins accuracy back after quantization: equalization, bias correction, rounding, splits, and their search."""
