"""The cases so far: functions that fill a graph, by name."""

from __future__ import annotations

import numpy as np

random = np.random.default_rng(0)
CASES = {}


def case(function):
    """Add a case under its function's name."""
    CASES[function.__name__] = function
    return function


def weights(*shape, scale=0.4):
    """Return some weights."""
    return (random.normal(size=shape) * scale).astype(np.float32)
