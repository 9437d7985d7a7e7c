"""Resizing bytes by linear interpolation: read as bytes, interpolated in registers, stored as bytes.

Both axes are resized at once, so that nothing lies between them in memory. Dequantization, weights, sums and the
order of all of them are those of ONNX Runtime's bilinear kernel for floats (``UpsampleBilinear``), which has two pixels
of one half each where the last one is read alone, also along an axis that keeps its size: what is stored equals what
DequantizeLinear, Resize and QuantizeLinear store. Where an extent is known when the model runs, each result computes
what it reads; else it is a table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from forge_pipeline.codegen.float32 import nearest, resample
from forge_pipeline.codegen.float32.conv.geometry import simplify
from forge_pipeline.codegen.layout.affine import Affine, Clip, limit, quotient, rounded, stored
from forge_pipeline.codegen.layout.builder import Array, Graph, Value, shape_of
from forge_pipeline.codegen.layout.quantized_values import Dequantized, dequantized
from forge_pipeline.codegen.layout.symbolic_cast import Named
from forge_pipeline.codegen.onnx_import import resize

TAPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticAxis:
    """A known extent: result o is the sum over k of ``weights[o, k] * pixel[first[o] + k]``, for at most two k."""

    axis: int
    first: Array
    weights: Array

    def pixels(self, size: int) -> Array:
        """Return the two pixels (output, 2) that each result reads: the last one twice where it is read alone."""
        alone = self._last_alone(size)
        return np.stack([np.where(alone, size - 1, self.first), np.minimum(self.first + 1, size - 1)], axis=1)

    def shares(self, size: int) -> Array:
        """Return the weights of both."""
        halves = np.full_like(self.weights, 0.5)
        return np.where(self._last_alone(size)[:, None], halves, self.weights).astype(np.float32)

    def resized(self, graph: Graph, image: relax.Expr) -> relax.Expr:
        """Emit floats resized along the axis."""
        tables = [graph.constant(table) for table in (self.first, self.weights)]
        return graph.kernel(resample.resample, image, *tables, name=resample.NAME, axis=self.axis)

    def tables(self, size: int) -> list[Array]:
        """Return what the kernel for bytes reads beside the image."""
        return [self.pixels(size).astype(np.int32), self.shares(size)]

    def _last_alone(self, size: int) -> Array:
        return np.asarray((self.first == size - TAPS) & (self.weights[:, 0] == 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicAxis:
    """An axis of unknown extent: each result computes which pixels it reads."""

    choice: resize.Choice

    @property
    def axis(self) -> int:
        """Which it is."""
        return self.choice.position

    def resized(self, graph: Graph, image: relax.Expr) -> relax.Expr:
        """Emit floats resized along the axis."""
        return graph.kernel(self.choice.described, image, name="resize")

    def tables(self, _size: Any) -> list[Array]:
        """Return what the kernel for bytes reads beside the image."""
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """An image of bytes, resized along one or two axes, as a ``DeferredResult``."""

    value: Dequantized
    axes: tuple[StaticAxis | DynamicAxis, ...]
    clip: Clip

    def emit(self, graph: Graph) -> Value:
        """Emit it in float, an axis at a time."""
        is_blocked = graph.is_blocked(self.value)
        image = self.value.blocked if is_blocked else graph.plain(self.value)
        for resized_axis in self.axes:
            image = resized_axis.resized(graph, image)
        if self.clip != Clip():
            image = graph.kernel(limit, image, name="limit", clip=self.clip)
        return Value(blocked=image, channels=self.value.channels) if is_blocked else Value(plain=image)

    def quantized(self, graph: Graph, affine: Affine) -> Value:
        """Emit it in uint8."""
        source = self.value.source
        is_blocked = graph.is_blocked(source) or _fills_blocks(graph, source)
        image = graph.blocked(source) if is_blocked else graph.plain(source)
        sizes, resized = shape_of(image), {each.axis: each for each in self.axes}
        axes = tuple(
            resized.get(axis) or DynamicAxis(choice=resize.Choice.unchanged(axis, sizes[axis]))
            for axis in resample.PIXEL_AXES
        )
        tables = [graph.constant(table) for each in axes for table in each.tables(sizes[each.axis])]
        result = graph.kernel(
            interpolate, image, *tables, name="resize_u8", axes=axes, affine=self.value.affine, result=affine,
            clip=self.clip, fused=graph.machine.fused,
        )  # fmt: skip
        return Value(blocked=result, channels=source.channels) if is_blocked else Value(plain=result)


def _fills_blocks(graph: Graph, image: Value) -> bool:
    """Return whether an image's channels fill vectors: pixels beside each other are bytes that are read one by one."""
    channels = shape_of(graph.plain(image))[1]
    return isinstance(channels, int) and channels % graph.machine.lanes == 0


def interpolate(
    image: te.Tensor, *tables: te.Tensor,
    axes: tuple[StaticAxis | DynamicAxis, ...], affine: Affine, result: Affine, clip: Clip, fused: bool,
) -> te.Tensor:  # fmt: skip
    """Describe an image resized along ``axes``; for each of known extent a table of pixels and one of weights."""
    scale, shape, known = tirx.const(affine.scale, "float32"), list(image.shape), iter(tables)
    mixes: dict[int, Callable[[Any], tuple[list[Any], list[Any]]]] = {}
    for resized_axis in axes:
        size = image.shape[resized_axis.axis]
        if isinstance(resized_axis, StaticAxis):
            pixels, shares = next(known), next(known)
            mixes[resized_axis.axis], shape[resized_axis.axis] = partial(_read_tables, pixels, shares), pixels.shape[0]
        else:
            mixes[resized_axis.axis] = partial(resized_axis.choice.mixed, size=size)
            shape[resized_axis.axis] = simplify(resized_axis.choice.axis(size).output)

    def element(*at: Any) -> Any:
        total: Any = None
        mixed = {axis: mix(at[axis]) for axis, mix in mixes.items()}
        for taps in np.ndindex(*(TAPS,) * len(mixes)):
            place, weight = list(at), None
            for (axis, (pixels, shares)), tap in zip(mixed.items(), taps, strict=True):
                place[axis] = pixels[tap]
                weight = shares[tap] if weight is None else weight * shares[tap]
            real = (image(*place).astype("int32") - affine.zero).astype("float32") * scale
            term = rounded(weight * real)
            total = term if total is None else total + term
        return stored(quotient(total, result.scale, fused=fused), result, clip)

    return te.compute(shape, element, name="quantize_resize")


def _read_tables(pixels: te.Tensor, shares: te.Tensor, at: Any) -> tuple[list[Any], list[Any]]:
    """Return the two pixels that a result mixes, and their weights, from tables."""
    return [pixels(at, tap) for tap in range(TAPS)], [shares(at, tap) for tap in range(TAPS)]


def linear(graph: Graph, call: relax.Call) -> Value | None:
    """Take one axis of an image of bytes of known extent, where results read two pixels each."""
    found = resample.match_resample(graph, call)
    if found is None:
        return None
    source, axis, first, weights = found
    tables = [graph.look(table).constant for table in (first, weights)]
    if tables[0] is None or tables[1] is None or tables[1].shape[1] != TAPS or tables[1].dtype != np.float32:
        return None
    return _along(graph, source, StaticAxis(axis=axis, first=tables[0], weights=tables[1]))


def _along(graph: Graph, source: relax.Expr, resized_axis: StaticAxis | DynamicAxis) -> Value | None:
    """Take one axis of an image of bytes, or a second one of a deferred one, whatever the names of its extents."""
    if resized_axis.axis not in resample.PIXEL_AXES or len(shape_of(source)) != 2 + len(resample.PIXEL_AXES):
        return None
    value = graph.look(source)
    deferred = value.deferred
    first = deferred.inner if isinstance(deferred, Named) else deferred
    if isinstance(first, Resized) and graph.is_used_once(source):
        clips = {first.clip, deferred.clip if isinstance(deferred, Named) else Clip()}
        if clips != {Clip()} or any(other.axis == resized_axis.axis for other in first.axes):
            return None
        return Value(deferred=replace(first, axes=(*first.axes, resized_axis)))
    if not isinstance(value, Dequantized):
        return None
    return Value(deferred=Resized(value=value, axes=(resized_axis,), clip=Clip()))


def unsized(graph: Graph, call: relax.Call) -> Value | None:
    """Choose or mix pixels of bytes along an axis of unknown extent."""
    found = nearest.choice_of(graph, call)
    if found is None:
        return None
    image, choice = found
    if choice.rule.mode == "linear":
        return _along(graph, image, DynamicAxis(choice=choice))
    value = graph.look(image)
    if not isinstance(value, Dequantized):
        return None
    return dequantized(nearest.chosen(graph, image, value.source, nearest.pick_of(choice)), value.affine)


def resized(graph: Graph, call: relax.Call) -> Value | None:
    """Take either."""
    return unsized(graph, call) or linear(graph, call)


HANDLERS = {"relax.call_tir": resized}
