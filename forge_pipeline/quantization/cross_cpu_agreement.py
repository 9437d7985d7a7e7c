"""Numbers that a float run gave, rounded until CPUs agree on them.

One CPU adds in another order than the next, with or without fused multiply-adds, so activations differ in their last
bits, by some 1e-6 of their size. A model that such numbers are written into would have other bytes on each of them.
Here they are rounded to a grid so much coarser that two CPUs almost never stand on two sides of an edge; and the
edges lie where no natural number lies: a maximum that is 1 but for rounding must not be on one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPAN_BITS = 8
"""Significant bits of a range's ends: a range is wider by 0.4 % in the middle, 0.8 % at most."""

CLOSE = 2.0**-14
"""A value that is above a grid point by less than this share of it counts as the grid point."""

ROOTS = (1.0, 1.189207115002721, 1.4142135623730951, 1.681792830507429)
"""What channels are rescaled by, times a power of two: at most 9 % off, which is a tenth of a bit.

2 to the 0, 1/4, 1/2 and 3/4, written out because two CPUs may compute them differently.
"""

MEAN_BITS = 5
"""Bits of the largest mean: what the correction of a bias then misses is a thirtieth of itself."""

OFF_NATURAL = 1.37
"""Moves the edges between powers of two to where no power of two is."""


def outward(low: float, high: float) -> tuple[float, float]:
    """Return the range with both ends moved away from zero, to ``SPAN_BITS`` significant bits."""
    return _larger(low), _larger(high)


def rescaling(factor: NDArray[Any]) -> NDArray[np.float64]:
    """Return positive factors as powers of two, to a quarter of an octave."""
    octaves, steps = np.divmod(np.rint(np.log2(factor.astype(np.float64)) * len(ROOTS)).astype(np.int64), len(ROOTS))
    nearest: NDArray[np.float64] = np.ldexp(np.array(ROOTS)[steps], octaves)
    return nearest


def means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return means, one per channel, in multiples of one power of two."""
    peak = float(np.abs(values).max(initial=0.0))
    if not peak:
        return values
    unit = math.ldexp(1.0, math.frexp(peak * OFF_NATURAL)[1] - MEAN_BITS)
    grid: NDArray[np.float64] = np.rint(values / unit) * unit
    return grid


def _larger(value: float) -> float:
    mantissa, exponent = math.frexp(abs(value) * (1 - CLOSE))
    return math.copysign(math.ldexp(math.ceil(math.ldexp(mantissa, SPAN_BITS)), exponent - SPAN_BITS), value)
