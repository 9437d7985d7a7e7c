"""Pooling of bytes: the largest is itself an integer, means are int32 sums that wait to be stored.

What has one axis is an image with one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from forge_pipeline.codegen.graph import Array, Graph, Value, ints, shape_of
from forge_pipeline.codegen.integer import Affine, Clip, Dequantized, Storable, dequantized
from forge_pipeline.codegen.integer_finish import Finish, to_float_if_needed
from forge_pipeline.codegen.schedules import integer_pool_unsized, moves, pool
from forge_pipeline.codegen.schedules.integer_forms import Pictured, pictured, row_of

if TYPE_CHECKING:
    from tvm import relax, te

Windows = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
"""Size, strides and leading padding of windows, each (height, width)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean(Storable):
    """Means of windows that wait to be stored: a ``Waiting`` result; ``shares`` (h, w) is one by pixels averaged.

    ``source`` is an image; ``line`` the shape of the result where that has one axis.
    """

    source: Value
    affine: Affine
    windows: Windows
    shares: Array
    clip: Clip
    line: tuple[Any, ...] | None

    def _emit(self, graph: Graph, affine: Affine | None) -> Value:
        scale = (np.float32(self.affine.scale) * self.shares).astype(np.float32)
        finish = Finish.of(scale, np.zeros(1), None, affine, self.clip)
        result = graph.kernel(
            average, graph.blocked(self.source), graph.constant(finish.factor),
            name="average_u8", zero=self.affine.zero, windows=self.windows, finish=finish,
        )  # fmt: skip
        return _shaped(Value(blocked=result, channels=self.source.channels), self.line)


def window(graph: Graph, call: relax.Call) -> Value | None:
    """Pool blocked integers."""
    value, attributes = graph.look(call.args[0]), call.attrs
    if not isinstance(value, Dequantized) or any(step != 1 for step in ints(attributes.dilation)):
        return None
    shape, result = shape_of(call.args[0]), shape_of(call)
    rank = len(shape) - 2
    if rank > 2 or not isinstance(shape[1], int):
        return None
    if not all(isinstance(extent, int) for extent in (*shape[2:], *result[2:])):
        return integer_pool_unsized.window(graph, value, call) if rank == 2 else None
    ones, zeros, padding = [1] * (2 - rank), [0] * (2 - rank), ints(attributes.padding)
    size, strides = [*ones, *ints(attributes.pool_size)], [*ones, *ints(attributes.strides)]
    before, after = [*zeros, *padding[:rank]], [*zeros, *padding[rank:]]
    extents, results = [*ones, *shape[2:]], [*ones, *result[2:]]
    windows: Windows = ((size[0], size[1]), (strides[0], strides[1]), (before[0], before[1]))
    source, line = (value.source, None) if rank == 2 else (row_of(graph, value.source), result)
    if "max_pool" in call.op.name:
        largest = graph.kernel(maximum, graph.blocked(source), name="max_u8", windows=windows, output=tuple(results))
        return dequantized(_shaped(Value(blocked=largest, channels=source.channels), line), value.affine)
    counts = [
        _counts(extents[axis], results[axis], size[axis], strides[axis], before[axis], after[axis],
                outside=bool(attributes.count_include_pad))
        for axis in (0, 1)
    ]  # fmt: skip
    shares = (1.0 / np.outer(*counts)).astype(np.float32)
    return Value(
        pending=Mean(source=source, affine=value.affine, windows=windows, shares=shares, clip=Clip(), line=line)
    )


def _shaped(image: Value, line: tuple[Any, ...] | None) -> Value:
    return image if line is None else pictured(image, line)


def mean(graph: Graph, call: relax.Call) -> Value | None:
    """Average whole images of integers, or rows of pixels that are known as images."""
    value, axes = graph.look(call.args[0]), call.attrs.axis
    shape = shape_of(call.args[0])
    if not isinstance(value, Dequantized) or axes is None or not call.attrs.keepdims or not isinstance(shape[1], int):
        return None
    source, line = value.source, None
    if isinstance(source, Pictured) and len(shape) == 3:
        source, line = source.image, shape_of(call)
    elif len(shape) != 4:
        return None
    if sorted(axis % len(shape) for axis in ints(axes)) != list(range(2, len(shape))):
        return None
    if not all(isinstance(extent, int) for extent in shape[2:]):
        return integer_pool_unsized.whole(value) if line is None else None
    size = (1 if line is not None else shape[2], shape[-1])
    shares = np.full((1, 1), np.float32(1.0 / (size[0] * size[1])), np.float32)
    windows: Windows = (size, (1, 1), (0, 0))
    return Value(
        pending=Mean(source=source, affine=value.affine, windows=windows, shares=shares, clip=Clip(), line=line)
    )


def _counts(extent: int, results: int, size: int, stride: int, before: int, after: int, *, outside: bool) -> Array:
    """Return how many pixels the mean of each window along an axis is taken over."""
    low, high = (-before, extent + after) if outside else (0, extent)
    starts = np.arange(results) * stride - before
    return np.asarray(np.minimum(starts + size, high) - np.maximum(starts, low), np.float64)


def _pick(image: te.Tensor, windows: Windows, output: tuple[int, ...], filler: int) -> tuple[Any, list[Any]]:
    """Return a function from (n, block, h, w, lane) to the pixel of a window, and the axes within it."""
    from tvm import te, tirx

    height, width = (int(extent) for extent in image.shape[2:4])
    size, strides, before = windows
    axes = [te.reduce_axis((0, size[0]), "down"), te.reduce_axis((0, size[1]), "along")]
    reaches_out = any(before) or any(
        (count - 1) * stride + kernel > extent
        for count, stride, kernel, extent in zip(output, strides, size, (height, width), strict=True)
    )

    def pixel(n: Any, block: Any, h: Any, w: Any, lane: Any) -> Any:
        y, x = h * strides[0] + axes[0] - before[0], w * strides[1] + axes[1] - before[1]
        if not reaches_out:
            return image(n, block, y, x, lane)
        inside = tirx.all(y >= 0, y < height, x >= 0, x < width)
        return tirx.if_then_else(inside, image(n, block, y, x, lane), tirx.const(filler, "uint8"))

    return pixel, axes


def maximum(image: te.Tensor, windows: Windows, output: tuple[int, ...]) -> te.Tensor:
    """Describe the largest of each window."""
    from tvm import te

    pixel, axes = _pick(image, windows, output, 0)
    shape = (*image.shape[:2], *output, image.shape[4])
    return te.compute(shape, lambda *at: te.max(pixel(*at), axis=axes), name="pool", attrs={moves.FAMILY: pool.NAME})


def average(image: te.Tensor, shares: te.Tensor, zero: int, windows: Windows, finish: Finish) -> te.Tensor:
    """Describe the mean of each window; ``shares`` turns its sum into what is stored."""
    from tvm import te, tirx

    output = tuple(int(extent) for extent in shares.shape)
    pixel, axes = _pick(image, windows, output, zero)
    size = windows[0][0] * windows[0][1]
    shape = (*image.shape[:2], *output, image.shape[4])
    total = te.compute(
        shape, lambda *at: te.sum(pixel(*at).astype("int32"), axis=axes), name="pool", attrs={moves.FAMILY: pool.NAME}
    )
    bias = tirx.const(-zero * size, "int32")
    return te.compute(
        shape,
        lambda n, block, h, w, lane: finish.result(total(n, block, h, w, lane), bias, shares(h, w)),
        name=f"finish_{to_float_if_needed(finish.affine)}",
    )


HANDLERS = {
    **dict.fromkeys((f"relax.nn.{kind}_pool{rank}d" for kind in ("max", "avg") for rank in (1, 2)), window),
    "relax.mean": mean,
}
