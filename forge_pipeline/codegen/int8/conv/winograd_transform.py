"""Matrices of Winograd's filtering in integers: kernel rows multiplied until they are whole numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forge_pipeline.codegen.float32 import winograd
from forge_pipeline.codegen.layout.affine import LEVELS
from forge_pipeline.codegen.layout.builder import Array

WORD_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform(winograd.Transform):
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


SMALL = Transform(
    image=winograd.SMALL.image.astype(np.int64),
    kernel=(winograd.SMALL.kernel * 2).astype(np.int64),
    result=winograd.SMALL.result.astype(np.int64),
    odd=1,
    shift=2,
)
LARGE = Transform(
    image=winograd.LARGE.image.astype(np.int64),
    kernel=np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 1]], np.int64),
    result=np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 24]], np.int64),
    odd=9,
    shift=6,
)
