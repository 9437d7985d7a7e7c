"""Measurements of speed, memory and accuracy; each prints a table and writes JSON."""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before ONNX Runtime is imported, by whichever of them
