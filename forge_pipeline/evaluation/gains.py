"""Channels that the quantizer rescaled: equalization multiplies a channel here and divides it there, which is no noise.

The factor of each channel is the one that fits best in the least squares sense. A value counts as rescaled when most
of its channels are off by more than any quantizer's error; otherwise all its factors are 1, so that a channel that
became too large or too small is seen as the noise it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

RESCALED = 0.1
"""In octaves, the median over channels from which on a value counts as rescaled: 7 %."""


class Gains:
    """Sums over every pair of arrays seen so far, for each channel of a value."""

    def __init__(self, *, spatial: bool) -> None:
        self._spatial = spatial
        self._power: NDArray[np.float64] | None = None
        self._cross: NDArray[np.float64] | None = None

    def update(self, reference: NDArray[Any], value: NDArray[Any]) -> None:
        """Add one pair of equally shaped arrays; their channels are on axis 1, or on the last one if not spatial."""
        if reference.ndim < 2 or not reference.size:
            return
        exact = np.moveaxis(reference, self._axis(reference), 0).reshape(reference.shape[self._axis(reference)], -1)
        near = np.moveaxis(value, self._axis(value), 0).reshape(exact.shape)
        power = np.einsum("ij,ij->i", exact, exact, dtype=np.float64)
        cross = np.einsum("ij,ij->i", exact, near, dtype=np.float64)
        if self._power is None or self._cross is None:
            self._power, self._cross = power, cross
        elif self._power.shape == power.shape:
            self._power, self._cross = self._power + power, self._cross + cross

    def factors(self, array: NDArray[Any]) -> NDArray[Any] | float:
        """Return what ``array`` is multiplied by, shaped to be; 1.0 where the value is not rescaled."""
        if self._power is None or self._cross is None or array.ndim < 2:
            return 1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            gains = self._cross / self._power
        known = np.isfinite(gains) & (gains > 0.0)
        if not known.any() or np.median(np.abs(np.log2(gains[known]))) < RESCALED:
            return 1.0
        gains = np.where(known, gains, 1.0)
        if array.shape[self._axis(array)] != gains.size:
            return 1.0
        shape = [1] * array.ndim
        shape[self._axis(array)] = gains.size
        return gains.reshape(shape).astype(array.dtype)

    def _axis(self, array: NDArray[Any]) -> int:
        return 1 if self._spatial else array.ndim - 1
