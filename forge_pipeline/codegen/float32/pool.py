"""Pooling over blocked images: windows of any shape, and mean and maximum of a whole image or volume."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.float32.conv.geometry import simplify
from forge_pipeline.codegen.layout.builder import Graph, Value, has_known_shape, ints, shape_of
from forge_pipeline.codegen.tir import bfloat16_pairs, primitives
from forge_pipeline.codegen.tir.machine import Machine

NAME = "pool"
UNROLLED = 9
"""Window sizes up to this are unrolled."""


def window(graph: Graph, call: relax.Call) -> Value | None:
    """Pool in the blocked layout; means without dilation."""
    value, is_largest = graph.look(call.args[0]), call.op.name == "relax.nn.max_pool2d"
    if not graph.comes_blocked(value) or (not is_largest and any(step != 1 for step in ints(call.attrs.dilation))):
        return None
    if is_largest:
        largest = Largest(image=value, attributes=call.attrs)
        return Value(deferred=largest, channels=value.channels) if graph.machine.pairs else largest.emit(graph)
    pooled = graph.kernel(_average, graph.blocked(value), name="pool", attributes=call.attrs)
    return Value(blocked=require_pixels(graph, pooled, call.attrs), channels=value.channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The largest of each window of an image in blocks."""

    image: Value
    attributes: Any

    def emit(self, graph: Graph) -> Value:
        """Emit it of floats."""
        pooled = graph.kernel(maximum, graph.blocked(self.image), name="pool", attributes=self.attributes)
        return Value(blocked=require_pixels(graph, pooled, self.attributes), channels=self.image.channels)

    def halves(self, graph: Graph) -> relax.Expr:
        """Emit it of numbers in bfloat16, and in it."""
        bits = graph.halves(self.image)
        pooled = graph.kernel(_maximum_of_halves, bits, name="pool", attributes=self.attributes)
        return require_pixels(graph, pooled, self.attributes)


def require_pixels(graph: Graph, pooled: relax.Expr, attributes: Any) -> relax.Expr:
    """Return a result of windows; where it might have no pixel, that is refused when the model runs.

    A window that is larger than the image with its padding has none by the standard, while ONNX Runtime has one where
    less than a stride is missing.
    """
    extents, padding, is_sure = list(shape_of(pooled)), ints(attributes.padding), True
    lines = zip(ints(attributes.pool_size), ints(attributes.strides), ints(attributes.dilation), strict=True)
    for axis, (size, stride, step) in enumerate(lines):
        fits = (size - 1) * step <= padding[axis] + padding[axis + len(padding) // 2]
        if stride > 1 and not fits and not isinstance(extents[2 + axis], int):
            extents[2 + axis], is_sure = tirx.max(extents[2 + axis], tirx.IntImm("int64", 1)), False
    if is_sure:
        return pooled
    return graph.builder.match_cast(pooled, relax.TensorType(extents, pooled.ty.dtype))


def global_pool(graph: Graph, call: relax.Call) -> Value | None:
    """Average a whole image or volume, or find its maximum, in the blocked layout; a volume becomes an image first."""
    value, axes = graph.look(call.args[0]), call.attrs.axis
    rank = len(shape_of(call.args[0])) if has_known_shape(call.args[0], symbolic_axes=range(8)) else 0
    if axes is None or rank not in (4, 5) or sorted(axis % rank for axis in ints(axes)) != list(range(2, rank)):
        return None
    if rank == 5:
        if not has_known_shape(call.args[0]):
            return None
        batch, channels, depth, height, width = shape_of(call.args[0])
        value = Value(plain=graph.emit(relax.op.reshape(graph.plain(value), (batch, channels, depth * height, width))))
    elif not graph.is_blocked(value):
        return None
    is_mean = call.op.name == "relax.mean"
    kernel = graph.kernel(
        _global_average if is_mean else global_maximum, graph.blocked(value),
        name="global_average" if is_mean else "global_maximum",
    )  # fmt: skip
    pooled = Value(blocked=kernel, channels=value.channels)
    if call.attrs.keepdims and rank == 4:
        return pooled
    return Value(plain=graph.emit(relax.op.reshape(graph.plain(pooled), shape_of(call))))


def pool_windows(image: te.Tensor, attributes: Any, outside: Any, combine: Any) -> tuple[te.Tensor, Any]:
    """Combine each window, ``outside`` standing for what lies outside; also return one by a window's pixels."""
    batch, blocks, height, width, lanes = image.shape
    kernel, strides, padding = (ints(value) for value in (attributes.pool_size, attributes.strides, attributes.padding))
    top, left, bottom, right = padding
    dilation, is_rounded_up = ints(attributes.dilation), bool(attributes.ceil_mode)
    rows, columns = (
        simplify((extent + before + after - (size - 1) * step - 1 + (stride - 1 if is_rounded_up else 0)) // stride + 1)
        for extent, before, after, size, step, stride in zip(
            (height, width), (top, left), (bottom, right), kernel, dilation, strides, strict=True
        )
    )
    reaches_out = any(padding) or is_rounded_up
    real = image.dtype if "float" in str(image.dtype) else "float32"
    window_h, window_w = te.reduce_axis((0, kernel[0]), "down"), te.reduce_axis((0, kernel[1]), "along")

    def element(n: Any, block: Any, h: Any, w: Any, lane: Any) -> Any:
        y, x = h * strides[0] + window_h * dilation[0] - top, w * strides[1] + window_w * dilation[1] - left
        if not reaches_out:
            return combine(image[n, block, y, x, lane], axis=[window_h, window_w])
        inside = tirx.all(y >= 0, y < height, x >= 0, x < width)
        return combine(tirx.if_then_else(inside, image[n, block, y, x, lane], outside), axis=[window_h, window_w])

    def share(h: Any, w: Any) -> Any:
        one = tirx.const(1.0, real)
        if not reaches_out:
            return one / tirx.const(float(kernel[0] * kernel[1]), real)
        low, high = (0, 0), (height, width)
        if attributes.count_include_pad:
            low, high = (-top, -left), (height + bottom, width + right)
        y, x = h * strides[0] - top, w * strides[1] - left
        count_h = tirx.min(y + kernel[0], high[0]) - tirx.max(y, low[0])
        count_w = tirx.min(x + kernel[1], high[1]) - tirx.max(x, low[1])
        return one / (count_h * count_w).astype(real)

    shape = (batch, blocks, rows, columns, lanes)
    return te.compute(shape, element, name="pool", attrs={primitives.FAMILY: NAME}), share


def maximum(image: te.Tensor, attributes: Any) -> te.Tensor:
    """Describe the largest of each window."""
    return pool_windows(image, attributes, tirx.min_value(image.dtype), te.max)[0]


def _maximum_of_halves(bits: te.Tensor, attributes: Any) -> te.Tensor:
    image = te.compute(bits.shape, lambda *at: bfloat16_pairs.widened(bits(*at)), name="widen")
    largest = maximum(image, attributes)
    return te.compute(largest.shape, lambda *at: bfloat16_pairs.rounded(largest(*at)), name="round")


def _average(image: te.Tensor, attributes: Any) -> te.Tensor:
    sums, share = pool_windows(image, attributes, tirx.const(0, image.dtype), te.sum)
    return te.compute(sums.shape, lambda n, block, h, w, lane: sums[n, block, h, w, lane] * share(h, w), name="average")


def reduce_pixels(image: te.Tensor, combine: Any) -> te.Tensor:
    """Combine all pixels of an image."""
    batch, blocks, height, width, lanes = image.shape
    window_h, window_w = te.reduce_axis((0, height), "down"), te.reduce_axis((0, width), "along")
    return te.compute(
        (batch, blocks, 1, 1, lanes),
        lambda n, block, h, w, lane: combine(image[n, block, window_h, window_w, lane], axis=[window_h, window_w]),
        name="pool",
        attrs={primitives.FAMILY: NAME},
    )


def _global_average(image: te.Tensor) -> te.Tensor:
    sums = reduce_pixels(image, te.sum)
    scale = tirx.const(1.0, image.dtype) / (image.shape[2] * image.shape[3]).astype(image.dtype)
    return te.compute(sums.shape, lambda *index: sums(*index) * scale, name="average")


def global_maximum(image: te.Tensor) -> te.Tensor:
    """Describe the largest pixel of an image."""
    return reduce_pixels(image, te.max)


def schedule(sch: Schedule, machine: Machine) -> None:
    """One vector of channels at a time; rows of pixels over the threads."""
    anchor = primitives.find(sch, NAME)
    before, last = primitives.split_around(sch, anchor)
    for block in before:
        sch.compute_inline(block)
    n, blocks, h, w, lane, *taps = sch.get_loops(anchor)
    extents = [primitives.extent(sch, loop) for loop in (blocks, h, w, lane, *taps)]
    sch.reorder(n, blocks, h, w, *taps, lane)
    shared = primitives.fuse(sch, [n, blocks, h])
    sch.reverse_compute_at(last, w)
    primitives.parallel_if_worth(sch, shared, primitives.product(extents))
    if primitives.static(sch, lane) > machine.lanes and primitives.static(sch, lane) % machine.lanes == 0:
        outer, lane = sch.split(lane, [None, machine.lanes])
        sch.reorder(outer, *taps, lane)
    sch.vectorize(lane)
    is_small = None not in extents[-2:] and primitives.product(extents[-2:]) <= UNROLLED
    unrolled = taps[-2:] if is_small else ()
    primitives.unroll_tile(sch, anchor, last, taps[0], unrolled, below=2, lanes=machine.lanes)


HANDLERS = {
    "relax.nn.max_pool2d": window,
    "relax.nn.avg_pool2d": window,
    "relax.mean": global_pool,
    "relax.max": global_pool,
}
