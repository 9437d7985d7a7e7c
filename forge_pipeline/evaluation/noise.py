"""How far a signal is from its reference: signal-to-quantization-noise ratio and largest error, summed as it streams.

SQNR is 10 log10(E[x^2] / E[(x - y)^2]) in decibels, where x is the reference and y the approximation (Gersho and
Gray, Vector Quantization and Signal Compression, 1992, section 5.2). A bit of precision is worth about 6 dB.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
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

        exact = np.asarray(reference, dtype=np.float64).reshape(-1)
        near = np.asarray(value, dtype=np.float64).reshape(-1)
        with np.errstate(invalid="ignore", over="ignore"):
            difference = near - exact
            power, error = _squares(exact), _squares(difference)
        if not math.isfinite(power + error):  # no sum of squares is finite where a number is not
            finite = np.isfinite(exact)
            self.broken |= not np.array_equal(exact[~finite], near[~finite], equal_nan=True)
            self.broken |= not np.isfinite(near[finite]).all()
            both = finite & np.isfinite(near)
            exact, difference = exact[both], difference[both]
            power, error = _squares(exact), _squares(difference)
        if exact.size:
            self.signal += power
            self.error += error
            self.peak = max(self.peak, _largest(exact))
            self.max_abs = max(self.max_abs, _largest(difference))

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


def _squares(values: NDArray[np.float64]) -> float:
    """Return the sum of squares, on one core: of several, BLAS adds up in an order that depends on how many there are.

    On a busy machine it also waits for them, ten times as long as the sum takes.
    """
    import numpy as np

    return float(np.einsum("i,i->", values, values))


def _largest(values: NDArray[np.float64]) -> float:
    """Return the largest magnitude, without a copy."""
    return max(float(values.max()), -float(values.min()))
