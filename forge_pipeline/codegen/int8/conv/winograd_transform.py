"""Matrices of Winograd's filtering in integers: kernel rows multiplied until they are whole numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forge_pipeline.codegen.float32 import winograd_tiles
from forge_pipeline.codegen.layout.affine import LEVELS
from forge_pipeline.codegen.layout.builder import Array

WORD_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform(winograd_tiles.Transform):
    """F(m x m, 3 x 3) with integers; results are ``odd << shift`` times too large."""

    odd: int
    shift: int

    def of_kernel(self, weight: Array) -> Array:
        """Return (filters, channels, 3, 3), transformed."""
        return self.kernel @ weight.astype(np.int64) @ self.kernel.T

    def fits(self, weight: Array) -> bool:
        """Whether transformed weights fit int16, and every sum of products by bytes what the shift leaves of int32."""
        largest = int(np.abs(weight.astype(np.int64)).sum(axis=(1, 2, 3)).max(initial=0)) * LEVELS
        inside = int(np.abs(self.of_kernel(weight)).max(initial=0)) < 1 << 15
        return inside and largest < 1 << (WORD_BITS - 1 - self.shift)


def _in_integers(real: winograd_tiles.Transform, multiples: tuple[int, ...]) -> Transform:
    """Return ``real`` with the rows of its kernel matrix multiplied until they are whole numbers.

    The result's matrix makes up for what a row is multiplied by less than the others.
    """
    rows = np.array(multiples, np.int64)
    largest = int(rows.max())
    shift = (largest**2 & -(largest**2)).bit_length() - 1
    return Transform(
        image=real.image.astype(np.int64),
        kernel=np.rint(real.kernel * rows[:, None]).astype(np.int64),
        result=real.result.astype(np.int64) * (largest // rows),
        odd=largest**2 >> shift,
        shift=shift,
    )


SMALL = _in_integers(winograd_tiles.SMALL, (2, 2, 2, 2))
LARGE = _in_integers(winograd_tiles.LARGE, (24, 24, 24, 24, 24, 1))
