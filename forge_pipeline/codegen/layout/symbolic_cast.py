"""Values whose symbolic extents get other names: by a cast, put off until what can be computed with them is.

TVM fuses nothing across a cast. So what follows one, and computes each element by itself, goes before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from forge_pipeline.codegen.layout.affine import Affine, Clip
from forge_pipeline.codegen.layout.builder import Array, Graph, Value, shape_of
from forge_pipeline.codegen.layout.quantized_values import DeferredResult, Dequantized, dequantized
from forge_pipeline.codegen.layout.rows import ROW_RANK, AsImages, as_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """A value that is not emitted yet, whose extents have other names; what can be folded into it still can."""

    inner: Any
    kind: Any

    @property
    def weight(self) -> Array:
        """Weights, filters first."""
        weight: Array = self.inner.weight
        return weight

    @property
    def filters(self) -> int:
        """Channels of the result."""
        return int(self.inner.filters)

    def scaled(self, scale: Array, shift: Array) -> Renamed:
        """Return it followed by ``* scale + shift`` for each filter."""
        return Renamed(inner=self.inner.scaled(scale, shift), kind=self.kind)

    def emit(self, graph: Graph) -> Value:
        """Emit it."""
        return cast(graph, self.inner.emit(graph), self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A ``DeferredResult`` whose extents get other names."""

    inner: Any
    kind: Any
    clip: Clip

    def emit(self, graph: Graph) -> Value:
        """Emit it in float."""
        return cast(graph, graph.materialize(replace(self.inner, clip=self.clip).emit(graph)), self.kind)

    def quantized(self, graph: Graph, affine: Affine) -> Value:
        """Emit it in uint8."""
        stored = graph.materialize(replace(self.inner, clip=self.clip).quantized(graph, affine))
        return cast(graph, stored, _of_bytes(self.kind))


def _of_bytes(kind: relax.TensorType) -> relax.TensorType:
    return relax.TensorType(kind.shape, "uint8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """A value that is emitted, but for the cast."""

    value: Value
    kind: Any

    def emit(self, graph: Graph) -> Value:
        """Emit the cast."""
        return cast(graph, self.value, self.kind)


def cast(graph: Graph, value: Value, kind: relax.TensorType) -> Value:
    """Give a value's extents other names, in the form that it comes in."""
    if isinstance(value, Dequantized):
        return dequantized(cast(graph, value.source, _of_bytes(kind)), value.affine)
    if isinstance(value, AsImages) and len(kind.shape.values) == ROW_RANK:
        batch, channels, width = kind.shape.values
        image = cast(graph, value.image, relax.TensorType((batch, channels, 1, width), kind.dtype))
        return as_shape(image, (batch, channels, width))
    if isinstance(value.deferred, DeferredResult):
        named = Named(inner=value.deferred, kind=kind, clip=value.deferred.clip)
        return Value(deferred=named, channels=value.channels)
    if value.deferred is not None:
        return Value(deferred=Renamed(inner=value.deferred, kind=kind), channels=value.channels)
    if value.blocked is None:
        return Value(plain=graph.builder.match_cast(graph.plain(value), kind))
    batch, _, height, width = kind.shape.values
    _, blocks, _, _, lanes = shape_of(value.blocked)
    blocked = relax.TensorType((batch, blocks, height, width, lanes), kind.dtype)
    return Value(blocked=graph.builder.match_cast(value.blocked, blocked), channels=value.channels)
