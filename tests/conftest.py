"""Settings for every test."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # here too, where tests import ONNX Runtime before this package

# No test asserts a time; examples are the same in every run, so that a failure is there again.
settings.register_profile(
    "project", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("project")
