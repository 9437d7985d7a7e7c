"""Settings for every test."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
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


EVERY = {"tests/codegen/float32/": 3, "tests/codegen/int8/": 3, "tests/ir/contrib/": 3}
"""Of the cases of a test below these folders, each n-th is in the default suite where no mark says otherwise."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the cases of tests to the long suite, but for each n-th of them, as their mark `every` or folder says."""
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("every")
        folder = next((n for path, n in EVERY.items() if item.nodeid.startswith(path)), 1)
        step = mark.args[0] if mark is not None else folder
        if item.get_closest_marker("long") is None:
            name, _, _ = item.nodeid.partition("[")
            if seen[name] % step:
                item.add_marker(pytest.mark.long)
            seen[name] += 1
