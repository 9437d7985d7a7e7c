"""The modules that users hold: models that can be looked at, edited, calibrated, quantized and compiled in place."""
