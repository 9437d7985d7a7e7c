"""Settings for every test."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # here too, where tests import ONNX Runtime before this package

# A shell that runs the tests in the background has them ignore what tests send to the programs that they start.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# No test asserts a time; examples are the same in every run, so that a failure is there again.
settings.register_profile(
    "project", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("project")
