"""How far a signal is from its reference: signal-to-quantization-noise ratio and largest error, summed as it streams.

SQNR is 10 log10(E[x^2] / E[(x - y)^2]) in decibels, where x is the reference and y the approximation (Gersho and
Gray, Vector Quantization and Signal Compression, 1992, section 5.2). A bit of precision is worth about 6 dB.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

FLOOR_DB = -100.0
"""What is reported for noise without a signal, and for values that are finite in one of the two alone."""
NO_SIGNAL = float(10.0 ** (-FLOOR_DB / 10.0))


@dataclass(slots=True, kw_only=True)
class Noise:
    """Sums over every pair of arrays seen so far, in float64; the memory of one pair."""

    signal: float = 0.0
    error: float = 0.0
    peak: float = 0.0
    max_abs: float = 0.0
    broken: bool = False

    def update(self, reference: NDArray[Any], value: NDArray[Any]) -> None:
        """Add one pair of equally shaped real arrays; where both are infinite alike, or both NaN, they agree."""
        import numpy as np

        exact = np.asarray(reference, dtype=np.float64)
        near = np.asarray(value, dtype=np.float64)
        finite = np.isfinite(exact)
        if not finite.all() or not np.isfinite(near).all():
            self.broken |= not np.array_equal(exact[~finite], near[~finite], equal_nan=True)
            self.broken |= not np.isfinite(near[finite]).all()
            both = finite & np.isfinite(near)
            exact, near = exact[both], near[both]
        if exact.size:
            difference = near - exact
            self.signal += float(np.vdot(exact, exact))
            self.error += float(np.vdot(difference, difference))
            self.peak = max(self.peak, float(np.abs(exact).max()))
            self.max_abs = max(self.max_abs, float(np.abs(difference).max()))

    @property
    def ratio(self) -> float:
        """Noise power over signal power: 0 where there is no error."""
        if self.broken:
            return NO_SIGNAL
        if self.error == 0.0:
            return 0.0
        return self.error / self.signal if self.signal else NO_SIGNAL

    @property
    def sqnr_db(self) -> float | None:
        """The SQNR in decibels; None where there is no error at all."""
        return max(-10.0 * math.log10(self.ratio), FLOOR_DB) if self.ratio > 0.0 else None

    @property
    def max_rel(self) -> float | None:
        """The largest error relative to the largest reference value; None where that is zero."""
        return self.max_abs / self.peak if self.peak else None
