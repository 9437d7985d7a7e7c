"""What one streaming pass learns about a tensor, whatever the number of samples.

Extrema are exact. The histogram has a fixed number of bins over [-2^k, 2^k); a value beyond it doubles the span by
merging neighbouring bins, which is exact too: bin edges are multiples of a power of two, so a coarse bin is the union
of two finer ones. Sums of per-sample extrema are kept as integers (a float32 is an integer times 2^-149). Every
statistic therefore depends on the set of samples alone, not on their order nor on how they are sharded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 4096
MIN_EXPONENT = -126
BLOCK = 1 << 15  # values per step: temporaries stay in the second-level cache
UNIT = 149  # float32 values are integers in units of 2^-149

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Statistics:
    """A tensor seen in ``count`` samples.

    ``low`` and ``high`` are the extrema over all samples; ``low_sum`` and ``high_sum`` the sums of each sample's
    extrema in units of 2^-149; ``histogram`` counts values (a fixed subset of them in large tensors) in ``BINS``
    equal bins over [-2^exponent, 2^exponent).
    """

    count: int
    low: float
    high: float
    low_sum: int
    high_sum: int
    exponent: int
    histogram: Counts

    @property
    def average(self) -> tuple[float, float]:
        """The mean over samples of each sample's minimum and maximum."""
        scale = self.count << UNIT
        return float(Fraction(self.low_sum, scale)), float(Fraction(self.high_sum, scale))

    @property
    def width(self) -> float:
        """The width of a bin."""
        return math.ldexp(2.0 / BINS, self.exponent)

    @property
    def edges(self) -> NDArray[np.float64]:
        """The ``BINS + 1`` edges of the histogram."""
        return np.arange(-BINS // 2, BINS // 2 + 1, dtype=np.float64) * self.width

    def merge(self, other: Statistics) -> Statistics:
        """Return the statistics of both sets of samples together."""
        exponent = max(self.exponent, other.exponent)
        return Statistics(
            count=self.count + other.count,
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            low_sum=self.low_sum + other.low_sum,
            high_sum=self.high_sum + other.high_sum,
            exponent=exponent,
            histogram=coarsen(self.histogram, exponent - self.exponent)
            + coarsen(other.histogram, exponent - other.exponent),
        )


class Observer:
    """Accumulates the statistics of one tensor."""

    __slots__ = ("_count", "_exponent", "_high", "_high_sum", "_histogram", "_limit", "_low", "_low_sum")

    def __init__(self, limit: int) -> None:
        """Count at most about ``limit`` values of each sample in the histogram; extrema always see them all."""
        self._limit = limit
        self._count = self._low_sum = self._high_sum = 0
        self._low, self._high = math.inf, -math.inf
        self._exponent = MIN_EXPONENT
        self._histogram: Counts = np.zeros(BINS, np.int64)

    def add(self, values: NDArray[Any]) -> bool:
        """Take in one sample's values; False, and nothing is taken in, where one is not a finite number."""
        low, high = float(values.min()), float(values.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            return False
        self._count += 1
        self._low, self._high = min(self._low, low), max(self._high, high)
        self._low_sum += _units(low)
        self._high_sum += _units(high)
        exponent = span_exponent(low, high)
        if exponent > self._exponent:
            self._histogram = coarsen(self._histogram, exponent - self._exponent)
            self._exponent = exponent
        self._histogram += count_values(_subset(values.reshape(-1), self._limit), self._exponent)
        return True

    @property
    def empty(self) -> bool:
        """True until a sample was taken in."""
        return self._count == 0

    def result(self) -> Statistics:
        """Return what was learned; the observer has seen at least one sample."""
        return Statistics(
            count=self._count, low=self._low, high=self._high, low_sum=self._low_sum, high_sum=self._high_sum,
            exponent=self._exponent, histogram=self._histogram,
        )  # fmt: skip


def span_exponent(low: float, high: float) -> int:
    """Return the least k >= -126 for which all values lie in [-2^k, 2^k)."""
    magnitude = max(-low, high)
    exponent = math.frexp(magnitude)[1] if magnitude > 0 else MIN_EXPONENT
    return max(MIN_EXPONENT, exponent)


def coarsen(histogram: Counts, doublings: int) -> Counts:
    """Return the histogram over a span 2^doublings times as wide; no count is lost."""
    for _ in range(min(doublings, BINS.bit_length())):
        wider = np.zeros(BINS, np.int64)
        wider[BINS // 4 : BINS - BINS // 4] = histogram.reshape(-1, 2).sum(axis=1)
        histogram = wider
    return histogram


def count_values(values: NDArray[Any], exponent: int) -> Counts:
    """Count float32 ``values``, all in [-2^exponent, 2^exponent), in ``BINS`` bins.

    Multiplying a float32 by a power of two in double precision and `floor` are exact, and the offset is added to an
    integer: added before `floor`, rounding would put a value into another bin than its coarser bin's.
    """
    histogram = np.zeros(BINS, np.int64)
    scale = math.ldexp(BINS // 2, -exponent)
    for start in range(0, values.size, BLOCK):
        scaled = values[start : start + BLOCK] * np.float64(scale)
        bins = np.floor(scaled, out=scaled).astype(np.int64)
        histogram += np.bincount(bins + BINS // 2, minlength=BINS)
    return histogram


def _units(value: float) -> int:
    """Return a float32 value as an integer multiple of 2^-149; exact."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator << UNIT) // denominator


def _subset(values: NDArray[Any], limit: int) -> NDArray[Any]:
    """Return every n-th value; n is prime, so that it is in step with no axis of a usual shape."""
    if values.size <= limit:
        return values
    step = -(-values.size // limit)
    while any(step % divisor == 0 for divisor in range(2, math.isqrt(step) + 1)):
        step += 1
    return values[::step]
