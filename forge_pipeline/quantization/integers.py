"""Integer types and affine quantization: real = scale * (integer - zero), zero being an integer of the type.

After B. Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference" (CVPR 2018): zero is always represented exactly, so that padding adds no error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forge_pipeline.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerType:
    """An ONNX integer type by name, with its limits and the least opset whose QuantizeLinear knows it."""

    name: str
    low: int
    high: int
    opset: int

    @property
    def levels(self) -> int:
        """The number of steps between the least and the greatest integer."""
        return self.high - self.low


INTEGERS = Registry(
    "integer type",
    {
        name: IntegerType(name=name, low=low, high=high, opset=opset)
        for name, low, high, opset in (
            ("int8", -128, 127, 13),
            ("uint8", 0, 255, 13),
            ("int16", -32768, 32767, 21),
            ("uint16", 0, 65535, 21),
        )
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """A scale and a zero point: scalars, or one per channel along ``axis``."""

    scale: NDArray[np.float32]
    zero: NDArray[Any]
    axis: int | None = None


def activation_affine(low: float, high: float, kind: IntegerType, *, symmetric: bool) -> Affine:
    """Return the affine map whose range is [low, high] widened to hold zero.

    ``symmetric`` puts zero in the middle of the type. A value of the range is off by half a step at most.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    if symmetric:
        zero = (kind.low + kind.high + 1) // 2
        scale = np.float32(max(-low, high) / (kind.high - zero))
    else:
        scale = np.float32((high - low) / kind.levels)
        zero = int(np.clip(np.rint(kind.low - low / float(scale)), kind.low, kind.high)) if scale > 0 else 0
    return Affine(scale=np.asarray(scale, np.float32), zero=np.asarray(zero, kind.name))


def around(constant: float, kind: IntegerType, *, symmetric: bool) -> tuple[float, float]:
    """Return a range for an activation that was one number throughout: that number is exact, and has room above it."""
    if not constant:
        return 0.0, 1.0
    steps = kind.high - (kind.low + kind.high + 1) // 2 if symmetric else kind.levels
    reach = constant * steps / (steps // 2)
    return min(reach, 0.0), max(reach, 0.0)


def weight_scale(weights: NDArray[Any], axis: int | None, *, largest: int) -> NDArray[np.float32]:
    """Return the symmetric scale that maps the largest weight (of each channel along ``axis``) to ``largest``.

    A channel of zeros takes the greatest scale of the others: its bias then has room.
    """
    if axis is None:
        bounds = np.asarray(np.abs(weights).max(initial=0.0), np.float64)
    else:
        others = tuple(other for other in range(weights.ndim) if other != axis)
        bounds = np.abs(weights).max(axis=others, initial=0.0).astype(np.float64)
    scale = np.asarray(bounds / largest, np.float32)
    tiny = np.float32(np.finfo(np.float32).tiny)
    dead = scale < tiny
    spare = scale.max(initial=0.0)
    scale[dead] = spare if spare >= tiny else np.float32(1.0)
    return scale


def quantize(values: NDArray[Any], affine: Affine, kind: IntegerType) -> NDArray[Any]:
    """Return the integers that QuantizeLinear computes: round half to even, then saturate."""
    scale, zero = _along(affine, values.ndim)
    codes = np.rint(values.astype(np.float32) / scale) + zero
    integers: NDArray[Any] = np.clip(codes, kind.low, kind.high).astype(kind.name)
    return integers


def dequantize(integers: NDArray[Any], affine: Affine) -> NDArray[np.float32]:
    """Return the reals that DequantizeLinear computes."""
    scale, zero = _along(affine, integers.ndim)
    reals: NDArray[np.float32] = (integers.astype(np.float32) - zero) * scale
    return reals


def _along(affine: Affine, ndim: int) -> tuple[NDArray[Any], NDArray[Any]]:
    if affine.axis is None:
        return affine.scale, affine.zero.astype(np.float32)
    shape = [1] * ndim
    shape[affine.axis] = -1
    return affine.scale.reshape(shape), affine.zero.astype(np.float32).reshape(shape)
