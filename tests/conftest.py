"""Settings for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No test asserts a time; examples are the same in every run, so that a failure is there again.
settings.register_profile(
    "project", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("project")
