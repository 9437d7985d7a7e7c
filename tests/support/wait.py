"""Waiting for something, not without end."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 20.0  # far from what it takes


def until(is_so: Callable[[], bool], *, seconds: float = SECONDS, pause: float = 0.01) -> None:
    """Return as soon as it is so, asking once in ``pause`` seconds."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(pause)
