"""Affine quantization in tensor expressions: scales, zero points, clipping and rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax, te, tirx

from forge_pipeline.codegen.layout.builder import Array

LEVELS = 255


ROUNDS = 1.5 * 2**23
"""A float32 near it has no bits for fractions: adding it rounds half to even, into the low bits, and those of
``ROUNDS`` itself are zero there. That is one instruction where rounding and converting are two."""


SUM_LIMIT = 1 << 30
"""Constant part of a sum from which on int32 might not hold the rest."""


TAME = (1e-18, 1e18)
"""Divisors between these have neither reciprocals nor remainders outside the normal numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """``x = (q - zero) * scale`` for a uint8 tensor; ``scale`` is a float32."""

    scale: float
    zero: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicAffine:
    """Scale and zero point of bytes that are summed, and the ``sums`` of the weights of each channel, int32."""

    scale: relax.Expr
    zero: relax.Expr
    sums: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Bounds of what is stored, in real units."""

    low: float = float("-inf")
    high: float = float("inf")

    def within(self, low: float, high: float) -> Clip:
        """Return the bounds of values that are then clipped to ``low`` and ``high``."""
        return Clip(low=min(max(self.low, low), high), high=max(min(self.high, high), low))

    def codes(self, affine: Affine) -> tuple[float, float]:
        """Return the bounds of ``x / scale`` for which ``q`` is in its type's range, and within these."""
        scale = np.float32(affine.scale)
        low = max(-affine.zero, float(np.rint(np.float32(self.low) / scale)))
        high = min(LEVELS - affine.zero, float(np.rint(np.float32(self.high) / scale)))
        return low, max(low, high)


def to_float(image: te.Tensor, affine: Affine) -> te.Tensor:
    """Describe the dequantization of a tensor in any form."""
    scale = tirx.const(affine.scale, "float32")
    return te.compute(
        image.shape, lambda *at: (image(*at).astype("int32") - affine.zero).astype("float32") * scale, name="dequantize"
    )


def to_integers(image: te.Tensor, affine: Affine, clip: Clip) -> te.Tensor:
    """Describe the quantization of a float tensor in any form, by division as ONNX has it."""
    scale = tirx.const(affine.scale, "float32")
    return te.compute(image.shape, lambda *at: stored(image(*at) / scale, affine, clip), name="quantize")


def stored(codes: tirx.PrimExpr, affine: Affine, clip: Clip) -> tirx.PrimExpr:
    """Return ``x / scale`` rounded, clipped and moved to the zero point: an uint8 expression."""
    low, high = (tirx.const(bound, "float32") for bound in clip.codes(affine))
    shifted = tirx.max(tirx.min(codes, high), low) + tirx.const(ROUNDS, "float32")
    return (tirx.reinterpret("int32", shifted) + affine.zero).astype("uint8")


def clipped_float(value: tirx.PrimExpr, clip: Clip) -> tirx.PrimExpr:
    """Return a float32 expression within bounds."""
    if clip.low > float("-inf"):
        value = tirx.max(value, tirx.const(clip.low, "float32"))
    if clip.high < float("inf"):
        value = tirx.min(value, tirx.const(clip.high, "float32"))
    return value


def limit(image: te.Tensor, clip: Clip) -> te.Tensor:
    """Describe a float tensor in any form within bounds."""
    return te.compute(image.shape, lambda *at: clipped_float(image(*at), clip), name="limit")


def rounded(value: tirx.PrimExpr) -> tirx.PrimExpr:
    """Return a float32 product that is rounded before it is added to: no multiply-add takes it in."""
    return tirx.call_llvm_pure_intrin("float32", "llvm.arithmetic.fence", value)


def quotient(value: tirx.PrimExpr, divisor: float, *, fused: bool) -> tirx.PrimExpr:
    """Return a float32 expression divided and rounded as IEEE 754 says.

    With ``fused`` multiply-adds that takes three instructions: a product by the reciprocal, its remainder, and a
    correction by that (Markstein, "Computation of elementary functions on the IBM RISC System/6000", 1990). What they
    share is written out, and LLVM finds it: TVM does not take lanes apart where an expression binds variables.
    """
    scale, inverse = tirx.const(divisor, "float32"), np.float32(1) / np.float32(divisor)
    if float(inverse) * divisor == 1.0:
        return value * tirx.const(float(inverse), "float32")
    if not fused or not TAME[0] < divisor < TAME[1]:
        return value / scale
    factor = tirx.const(float(inverse), "float32")

    def multiply_add(*operands: tirx.PrimExpr) -> tirx.PrimExpr:
        return tirx.call_llvm_pure_intrin("float32", "llvm.fma", *operands)

    first = value * factor
    return multiply_add(multiply_add(-first, scale, value), factor, first)
