"""Quantized values in the graph, and the arithmetic that leads back to them.

A value x is stored as q with x = (q - zero) * scale. What reads a DequantizeLinear does not get floats but this
knowledge (``Dequantized``); an operator that can compute on integers leaves a result that is deferred to
the QuantizeLinear behind it. Where there is none, or where somebody else reads the value too, it is emitted in
float: nothing is computed in integers that the model did not ask to be rounded there.

Rounding is that of ONNX Runtime's integer kernels: clipped to the range of the type, rounded half to even.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from tvm import relax

from forge_pipeline.codegen.layout.affine import Affine, Clip, to_float, to_integers
from forge_pipeline.codegen.layout.builder import Array, Graph, Value


@dataclass(slots=True, kw_only=True)
class Dequantized(Value):
    """A float value that is known as integers: ``source`` holds them, uint8, in any form."""

    source: Value
    affine: Affine


@dataclass(slots=True, kw_only=True)
class Rounded(Value):
    """Bytes of an input of the model, that a convolution may make for itself: ``floats`` with axes in another order.

    Once they are emitted for somebody else, nothing is deferred, and they are a value like any other.
    """

    floats: relax.Expr
    affine: Affine
    axes: tuple[int, ...]

    def transposed(self, axes: Sequence[int]) -> Rounded:
        """Return the bytes with their axes in another order."""
        return rounded_later(self.floats, self.affine, tuple(self.axes[axis] for axis in axes))


@dataclass(slots=True, kw_only=True)
class DynamicallyQuantized(Value):
    """A float value that is known as bytes, whose scale and zero point are found when the model runs."""

    source: Value
    scale: relax.Expr
    zero: relax.Expr


@dataclass(slots=True, kw_only=True)
class QuantizedBlocks(Value):
    """A float value that is known as int8 ``integers`` (.., steps) times ``scales`` (.., blocks), found in a run."""

    integers: relax.Expr
    scales: relax.Expr


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


@runtime_checkable
class DeferredResult(Protocol):
    """A deferred result that can be stored quantized, or clipped before it is."""

    @property
    def clip(self) -> Clip:
        """Bounds of the result."""

    def emit(self, graph: Graph) -> Value:
        """Emit it in float."""

    def quantized(self, graph: Graph, affine: Affine) -> Value:
        """Emit it in uint8."""


class DeferredKernel(ABC):
    """Base of ``DeferredResult`` that the same code emits in float and in uint8."""

    __slots__ = ()

    def emit(self, graph: Graph) -> Value:
        """Emit it in float."""
        return graph.materialize(self._emit(graph, None))

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
        done = graph.kernel(to_integers, self.floats, name="quantize", affine=self.affine, clip=Clip())
        if self.axes != tuple(range(len(self.axes))):
            done = graph.emit(relax.op.permute_dims(done, list(self.axes)))
        return Value(plain=done)


def rounded_later(floats: relax.Expr, affine: Affine, axes: tuple[int, ...]) -> Rounded:
    """Return the bytes of an input, to be emitted when somebody reads them."""
    deferred = Division(floats=floats, affine=affine, axes=axes)
    return Rounded(floats=floats, affine=affine, axes=axes, deferred=deferred)


def dequantized(source: Value, affine: Affine) -> Dequantized:
    """Return a float value that is known as integers."""
    deferred = Unpacked(source=source, affine=affine)
    return Dequantized(source=source, affine=affine, deferred=deferred, channels=source.channels)


def clipped(deferred_result: Any, low: float, high: float) -> Value:
    """Return a deferred result with bounds."""
    return Value(deferred=replace(deferred_result, clip=deferred_result.clip.within(low, high)))


def deferred_result(graph: Graph, expression: relax.Expr) -> DeferredResult | None:
    """Return what is deferred until it is quantized, if ``expression`` is the only one who reads it."""
    deferred = graph.look(expression).deferred
    return deferred if isinstance(deferred, DeferredResult) and graph.is_used_once(expression) else None


def divided(graph: Graph, value: Value, affine: Affine, clip: Clip) -> Value:
    """Emit the quantization of floats, in the form that they have."""
    if graph.is_blocked(value):
        integers = graph.kernel(to_integers, value.blocked, name="quantize", affine=affine, clip=clip)
        return Value(blocked=integers, channels=value.channels)
    return Value(plain=graph.kernel(to_integers, graph.plain(value), name="quantize", affine=affine, clip=clip))
