"""Pooling of bytes: the largest is itself an integer, means are deferred int32 sums.

What has one axis is an image with one row, what has three is a batch of images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from forge_pipeline.codegen.float32 import pool
from forge_pipeline.codegen.int8.conv.conv3d import images_of, stack_images
from forge_pipeline.codegen.int8.ops import pool_dynamic_shape
from forge_pipeline.codegen.int8.requantize import Epilogue, to_float_if_needed
from forge_pipeline.codegen.layout.affine import LEVELS, SUM_LIMIT, Affine, Clip
from forge_pipeline.codegen.layout.builder import Array, Graph, Value, ints, shape_of
from forge_pipeline.codegen.layout.quantized_values import DeferredKernel, Dequantized, dequantized
from forge_pipeline.codegen.layout.rows import AsImages, as_shape, image_of
from forge_pipeline.codegen.tir import primitives

PLANE = 2
"""Axes of an image."""

NAMES = ("deep", "down", "along")
"""Axes within a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What windows are along an axis of ``extent`` pixels, with ``output`` results."""

    extent: int
    output: int
    size: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0

    @property
    def input_width(self) -> int:
        """How far the last one reaches, from the first pixel on."""
        return (self.output - 1) * self.stride + (self.size - 1) * self.dilation + 1 - self.before

    def place(self, at: Any, tap: Any) -> Any:
        """Return where a window has a pixel."""
        return at * self.stride + tap * self.dilation - self.before

    def outside(self, place: Any) -> list[Any]:
        """Return the conditions under which there is a pixel at a place."""
        if self.before <= 0 and self.input_width <= self.extent:
            return []
        return [place >= 0, place < self.extent]

    def counts(self, *, padding: bool) -> Array:
        """Return how many pixels the mean of each is taken over, with those of the ``padding`` or without."""
        low, high = (-self.before, self.extent + self.after) if padding else (0, self.extent)
        starts = np.arange(self.output) * self.stride - self.before
        return np.asarray(np.minimum(starts + self.size, high) - np.maximum(starts, low), np.float64)


Windows = tuple[Window, ...]
"""Along height and width, or depth, height and width: an image is then one of a volume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """What is pooled, as blocked images, and how a result of ``shape`` is made of theirs."""

    source: Value
    windows: Windows
    shape: tuple[Any, ...]

    @classmethod
    def of(cls, graph: Graph, source: Value, windows: Windows, shape: tuple[Any, ...]) -> Pooled:
        """Return it for a source of one, two or three axes, whose result has ``shape``."""
        if len(windows) == 1:
            return cls(
                source=image_of(graph, source), windows=(Window(extent=1, output=1, size=1), *windows), shape=shape
            )
        return cls(source=source if len(windows) == PLANE else images_of(graph, source), windows=windows, shape=shape)

    def shaped(self, blocked: relax.Expr) -> Value:
        """Return the result for that of the images."""
        image = Value(blocked=blocked, channels=self.source.channels)
        if len(self.windows) > PLANE:
            return stack_images(image, self.windows[0].output)
        return image if len(self.shape) == 2 + PLANE else as_shape(image, self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean(DeferredKernel):
    """Means of windows as a ``DeferredResult``; ``shares`` of a window's place is one by its
    pixels."""

    pooled: Pooled
    affine: Affine
    shares: Array
    clip: Clip

    def _emit(self, graph: Graph, affine: Affine | None) -> Value:
        scale = (np.float32(self.affine.scale) * self.shares).astype(np.float32)
        epilogue = Epilogue.of(scale, np.zeros(1), None, affine, self.clip)
        result = graph.kernel(
            average, graph.blocked(self.pooled.source), graph.constant(epilogue.factor),
            name="average_u8", zero=self.affine.zero, windows=self.pooled.windows, epilogue=epilogue,
        )  # fmt: skip
        return self.pooled.shaped(result)


def window(graph: Graph, call: relax.Call) -> Value | None:
    """Pool blocked integers; means without dilation."""
    value, attributes, is_largest = graph.look(call.args[0]), call.attrs, "max_pool" in call.op.name
    dilation = ints(attributes.dilation)
    if not isinstance(value, Dequantized) or (not is_largest and any(step != 1 for step in dilation)):
        return None
    shape, result = shape_of(call.args[0]), shape_of(call)
    rank = len(shape) - 2
    if not isinstance(shape[1], int):
        return None
    if not all(isinstance(extent, int) for extent in (*shape[2:], *result[2:])):
        return pool_dynamic_shape.window(graph, value, call) if rank == PLANE else None
    padding = ints(attributes.padding)
    windows = tuple(
        Window(extent=extent, output=output, size=size, stride=stride, dilation=step, before=before, after=after)
        for extent, output, size, stride, step, before, after in zip(
            shape[2:], result[2:], ints(attributes.pool_size), ints(attributes.strides), dilation,
            padding[:rank], padding[rank:], strict=True,
        )
    )  # fmt: skip
    pooled = Pooled.of(graph, value.source, windows, result)
    if is_largest:
        return _largest(graph, pooled, value.affine)
    counts = [each.counts(padding=bool(attributes.count_include_pad)) for each in pooled.windows]
    return _mean(pooled, value.affine, 1.0 / reduce(np.multiply.outer, counts))


def whole(graph: Graph, call: relax.Call) -> Value | None:
    """Average whole images or volumes of integers, or find the largest, or of rows that are known as images."""
    value, axes, is_largest = graph.look(call.args[0]), call.attrs.axis, call.op.name == "relax.max"
    shape = shape_of(call.args[0])
    if not isinstance(value, Dequantized) or axes is None or not call.attrs.keepdims or not isinstance(shape[1], int):
        return None
    if len(shape) not in (4, 5) and not (len(shape) == 3 and isinstance(value.source, AsImages)):
        return None
    if sorted(axis % len(shape) for axis in ints(axes)) != list(range(2, len(shape))):
        return None
    if not all(isinstance(extent, int) for extent in shape[2:]):
        return pool_dynamic_shape.whole(graph, value, call) if len(shape) == 2 + PLANE else None
    windows = tuple(Window(extent=extent, output=1, size=extent) for extent in shape[2:])
    pooled = Pooled.of(graph, value.source, windows, shape_of(call))
    if is_largest:
        return _largest(graph, pooled, value.affine)
    return _mean(pooled, value.affine, np.full((1,) * len(pooled.windows), 1.0 / math.prod(shape[2:])))


def _mean(pooled: Pooled, affine: Affine, shares: Array) -> Value | None:
    """Return means; None where int32 has no room for their sums."""
    if LEVELS * math.prod(each.size for each in pooled.windows) >= SUM_LIMIT:
        return None
    return Value(deferred=Mean(pooled=pooled, affine=affine, shares=shares.astype(np.float32), clip=Clip()))


def _largest(graph: Graph, pooled: Pooled, affine: Affine) -> Value:
    found = graph.kernel(maximum, graph.blocked(pooled.source), name="max_u8", windows=pooled.windows)
    return dequantized(pooled.shaped(found), affine)


def _pick(image: te.Tensor, windows: Windows, filler: int) -> tuple[tuple[Any, ...], Any, list[Any]]:
    """Return the result's shape, a function from a place in it to the pixel of a window, and the axes in that."""
    axes = [te.reduce_axis((0, each.size), name) for each, name in zip(windows, NAMES[-len(windows) :], strict=True)]
    images = image.shape[0]
    if len(windows) > PLANE:
        images = images // windows[0].extent * windows[0].output

    def pixel(n: Any, block: Any, h: Any, w: Any, lane: Any) -> Any:
        at, source = _at(windows, n, h, w), n
        places = [each.place(own, tap) for each, own, tap in zip(windows, at, axes, strict=True)]
        if len(windows) > PLANE:
            source = n // windows[0].output * windows[0].extent + places[0]
        value = image(source, block, *places[-PLANE:], lane)
        inside = [part for each, place in zip(windows, places, strict=True) for part in each.outside(place)]
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(filler, "uint8")) if inside else value

    shape = (images, image.shape[1], *(each.output for each in windows[-PLANE:]), image.shape[4])
    return shape, pixel, axes


def _at(windows: Windows, n: Any, h: Any, w: Any) -> tuple[Any, ...]:
    """Return which window along each axis a result belongs to."""
    return (h, w) if len(windows) == PLANE else (n % windows[0].output, h, w)


def maximum(image: te.Tensor, windows: Windows) -> te.Tensor:
    """Describe the largest of each window."""
    shape, pixel, axes = _pick(image, windows, 0)
    return te.compute(
        shape, lambda *at: te.max(pixel(*at), axis=axes), name="pool", attrs={primitives.FAMILY: pool.NAME}
    )


def average(image: te.Tensor, shares: te.Tensor, zero: int, windows: Windows, epilogue: Epilogue) -> te.Tensor:
    """Describe the mean of each window; ``shares`` turns its sum into what is stored."""
    shape, pixel, axes = _pick(image, windows, zero)
    total = te.compute(
        shape,
        lambda *at: te.sum(pixel(*at).astype("int32"), axis=axes),
        name="pool",
        attrs={primitives.FAMILY: pool.NAME},
    )
    bias = tirx.const(-zero * math.prod(each.size for each in windows), "int32")
    return te.compute(
        shape,
        lambda n, block, h, w, lane: epilogue.result(total(n, block, h, w, lane), bias, shares(*_at(windows, n, h, w))),
        name=f"finish_{to_float_if_needed(epilogue.affine)}",
    )


HANDLERS = {
    **dict.fromkeys((f"relax.nn.{kind}_pool{rank}d" for kind in ("max", "avg") for rank in (1, 2, 3)), window),
    "relax.mean": whole,
    "relax.max": whole,
}
