"""Sums of floats in another order: how far apart what two programs, or one on two CPUs, compute may be."""

from __future__ import annotations

from typing import Any

import numpy as np

HALF_UNIT = 2.0**-24
"""Of float32: what one addition rounds away at most, relative to its result."""


def assert_same_sums(found: Any, wanted: Any, *, terms: int) -> None:
    """Assert that float32 arrays are sums of the same ``terms`` numbers, in whatever order each was added up.

    Each addition, on either side, rounds by half a unit of what is there so far (Higham, Accuracy and Stability of
    Numerical Algorithms, 4.2); the largest result stands for that. The terms of layers behind each other add up.
    """
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2 * terms * HALF_UNIT * float(np.abs(wanted).max(initial=0)))
