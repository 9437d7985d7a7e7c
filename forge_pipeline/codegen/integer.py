"""Quantized values in the graph, and the arithmetic that leads back to them.

A value x is stored as q with x = (q - zero) * scale. What reads a DequantizeLinear does not get floats but this
knowledge (``Dequantized``); an operator that can compute on integers leaves a result that waits (``Waiting``) for
the QuantizeLinear behind it. Where there is none, or where somebody else reads the value too, it is emitted in
float: nothing is computed in integers that the model did not ask to be rounded there.

Rounding is that of ONNX Runtime's integer kernels: clipped to the range of the type, rounded half to even.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from forge_pipeline.codegen.graph import Array, Graph, Value

if TYPE_CHECKING:
    from tvm import relax, te, tirx


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


@dataclass(slots=True, kw_only=True)
class Dequantized(Value):
    """A float value that is known as integers: ``source`` holds them, uint8, in any form."""

    source: Value
    affine: Affine


@dataclass(slots=True, kw_only=True)
class Rounded(Value):
    """Bytes of an input of the model, that a convolution may make for itself: ``floats`` with axes in another order.

    Once they are emitted for somebody else, nothing is pending, and they are a value like any other.
    """

    floats: relax.Expr
    affine: Affine
    axes: tuple[int, ...]

    def transposed(self, axes: Sequence[int]) -> Rounded:
        """Return the bytes with their axes in another order."""
        return rounded_later(self.floats, self.affine, tuple(self.axes[axis] for axis in axes))


@dataclass(slots=True, kw_only=True)
class Measured(Value):
    """A float value that is known as bytes, whose scale and zero point are found when the model runs."""

    source: Value
    scale: relax.Expr
    zero: relax.Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Scale and zero point of bytes that are summed, and the ``sums`` of the weights of each channel, int32."""

    scale: relax.Expr
    zero: relax.Expr
    sums: Array


@dataclass(slots=True, kw_only=True)
class IntegerWeight(Value):
    """A constant that is known as integers without zero point; ``scale`` has one element, or one along ``axis``."""

    integers: Array
    scale: Array
    axis: int


@dataclass(slots=True, kw_only=True)
class BlockWeight(Value):
    """A constant that is known as integers times float32 ``scales`` of the same shape, equal within a block."""

    integers: Array
    scales: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Bounds of what is stored, in real units."""

    low: float = float("-inf")
    high: float = float("inf")

    def within(self, low: float, high: float) -> Clip:
        """Return the bounds of values that are then clipped to ``low`` and ``high``."""
        return Clip(low=min(max(self.low, low), high), high=max(min(self.high, high), low))

    def steps(self, affine: Affine) -> tuple[float, float]:
        """Return the bounds of ``x / scale`` for which ``q`` is in its type's range, and within these."""
        scale = np.float32(affine.scale)
        low = max(-affine.zero, float(np.rint(np.float32(self.low) / scale)))
        high = min(LEVELS - affine.zero, float(np.rint(np.float32(self.high) / scale)))
        return low, max(low, high)


@runtime_checkable
class Waiting(Protocol):
    """A pending result that can be stored quantized, or clipped before it is."""

    @property
    def clip(self) -> Clip:
        """Bounds of the result."""

    def emit(self, graph: Graph) -> Value:
        """Emit it in float."""

    def quantized(self, graph: Graph, affine: Affine) -> Value:
        """Emit it in uint8."""


class Storable(ABC):
    """Base of ``Waiting`` results that the same code emits in float and in uint8."""

    __slots__ = ()

    def emit(self, graph: Graph) -> Value:
        """Emit it in float."""
        return graph.settle(self._emit(graph, None))

    def quantized(self, graph: Graph, affine: Affine) -> Value:
        """Emit it in uint8."""
        return self._emit(graph, affine)

    @abstractmethod
    def _emit(self, graph: Graph, affine: Affine | None) -> Value:
        """Emit it, in uint8 as ``affine`` says or in float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """Emits a dequantized value in float, in the form that its integers have."""

    source: Value
    affine: Affine

    def emit(self, graph: Graph) -> Value:
        """Emit it."""
        is_blocked = graph.is_blocked(self.source)
        integers = self.source.blocked if is_blocked else graph.plain(self.source)
        result = graph.kernel(to_float, integers, name="dequantize", affine=self.affine)
        return Value(blocked=result, channels=self.source.channels) if is_blocked else Value(plain=result)


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """Emits the bytes of an input."""

    floats: relax.Expr
    affine: Affine
    axes: tuple[int, ...]

    def emit(self, graph: Graph) -> Value:
        """Emit them."""
        from tvm import relax

        done = graph.kernel(to_integers, self.floats, name="quantize", affine=self.affine, clip=Clip())
        if self.axes != tuple(range(len(self.axes))):
            done = graph.emit(relax.op.permute_dims(done, list(self.axes)))
        return Value(plain=done)


def rounded_later(floats: relax.Expr, affine: Affine, axes: tuple[int, ...]) -> Rounded:
    """Return the bytes of an input, to be emitted when somebody reads them."""
    pending = Division(floats=floats, affine=affine, axes=axes)
    return Rounded(floats=floats, affine=affine, axes=axes, pending=pending)


def dequantized(source: Value, affine: Affine) -> Dequantized:
    """Return a float value that is known as integers."""
    pending = Unpacked(source=source, affine=affine)
    return Dequantized(source=source, affine=affine, pending=pending, channels=source.channels)


def clipped(waiting: Any, low: float, high: float) -> Value:
    """Return a waiting result with bounds."""
    return Value(pending=replace(waiting, clip=waiting.clip.within(low, high)))


def waiting(graph: Graph, expression: relax.Expr) -> Waiting | None:
    """Return what waits to be quantized, if ``expression`` is the only one who reads it."""
    pending = graph.look(expression).pending
    return pending if isinstance(pending, Waiting) and graph.is_used_once(expression) else None


def to_float(image: te.Tensor, affine: Affine) -> te.Tensor:
    """Describe the dequantization of a tensor in any form."""
    from tvm import te, tirx

    scale = tirx.const(affine.scale, "float32")
    return te.compute(
        image.shape, lambda *at: (image(*at).astype("int32") - affine.zero).astype("float32") * scale, name="dequantize"
    )


def to_integers(image: te.Tensor, affine: Affine, clip: Clip) -> te.Tensor:
    """Describe the quantization of a float tensor in any form, by division as ONNX has it."""
    from tvm import te, tirx

    scale = tirx.const(affine.scale, "float32")
    return te.compute(image.shape, lambda *at: stored(image(*at) / scale, affine, clip), name="quantize")


def divided(graph: Graph, value: Value, affine: Affine, clip: Clip) -> Value:
    """Emit the quantization of floats, in the form that they have."""
    if graph.is_blocked(value):
        integers = graph.kernel(to_integers, value.blocked, name="quantize", affine=affine, clip=clip)
        return Value(blocked=integers, channels=value.channels)
    return Value(plain=graph.kernel(to_integers, graph.plain(value), name="quantize", affine=affine, clip=clip))


def stored(steps: tirx.PrimExpr, affine: Affine, clip: Clip) -> tirx.PrimExpr:
    """Return ``x / scale`` rounded, clipped and moved to the zero point: an uint8 expression."""
    from tvm import tirx

    low, high = (tirx.const(bound, "float32") for bound in clip.steps(affine))
    shifted = tirx.max(tirx.min(steps, high), low) + tirx.const(ROUNDS, "float32")
    return (tirx.reinterpret("int32", shifted) + affine.zero).astype("uint8")


def clipped_float(value: tirx.PrimExpr, clip: Clip) -> tirx.PrimExpr:
    """Return a float32 expression within bounds."""
    from tvm import tirx

    if clip.low > float("-inf"):
        value = tirx.max(value, tirx.const(clip.low, "float32"))
    if clip.high < float("inf"):
        value = tirx.min(value, tirx.const(clip.high, "float32"))
    return value


def rounded(value: tirx.PrimExpr) -> tirx.PrimExpr:
    """Return a float32 product that is rounded before it is added to: no multiply-add takes it in."""
    from tvm import tirx

    return tirx.call_llvm_pure_intrin("float32", "llvm.arithmetic.fence", value)


def quotient(value: tirx.PrimExpr, divisor: float, *, fused: bool) -> tirx.PrimExpr:
    """Return a float32 expression divided and rounded as IEEE 754 says.

    With ``fused`` multiply-adds that takes three instructions: a product by the reciprocal, its remainder, and a
    correction by that (Markstein, "Computation of elementary functions on the IBM RISC System/6000", 1990).
    """
    from tvm import tirx

    scale, inverse = tirx.const(divisor, "float32"), np.float32(1) / np.float32(divisor)
    if float(inverse) * divisor == 1.0:
        return value * tirx.const(float(inverse), "float32")
    if not fused or not TAME[0] < divisor < TAME[1]:
        return value / scale
    factor = tirx.const(float(inverse), "float32")

    def multiply_add(*operands: tirx.PrimExpr) -> tirx.PrimExpr:
        return tirx.call_llvm_pure_intrin("float32", "llvm.fma", *operands)

    real, first = tirx.Var("real", "float32"), tirx.Var("first", "float32")
    rest = multiply_add(-first, scale, real)
    return tirx.Let(real, value, tirx.Let(first, real * factor, multiply_add(rest, factor, first)))
