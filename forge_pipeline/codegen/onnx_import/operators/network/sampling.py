"""Pixels read between the pixels: GridSample and DeformConv.

The equations are those of the ONNX operator reference, GridSample-20 and DeformConv-19, which follow PyTorch's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product as combinations
from math import prod
from typing import Any, Final

from tvm import te, tirx
from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.operators.elementwise import FLOATS
from forge_pipeline.codegen.onnx_import.operators.network.convolution import kernel_of
from forge_pipeline.codegen.onnx_import.operators.network.window import Window
from forge_pipeline.ir.sizes.expression import product

KEYS: Final = -0.75
"""The coefficient of cubic convolution (Keys, 1981)."""


def _grid_sample(node: NodeImport) -> Any:
    """GridSample over any number of axes; ``grid`` (N, ..., axes) has places from -1 to 1, the last axis first."""
    mode = node.text("mode", "linear").removeprefix("bi")
    padding, is_aligned = node.text("padding_mode", "zeros"), bool(node.attributes.get("align_corners", 0))
    space = node.rank() - 2

    def sampled(image: Any, grid: Any) -> Any:
        extents = image.shape[2:]

        def element(*at: Any) -> Any:
            places = [grid(at[0], *at[2:], space - 1 - axis) for axis in range(space)]
            places = [_pixel(place, extent, is_aligned) for place, extent in zip(places, extents, strict=True)]
            if mode == "nearest":
                places = [_nearest(place) for place in places]
            places = [_kept(p, extent, padding, is_aligned) for p, extent in zip(places, extents, strict=True)]
            taps = [_taps(place, mode) for place in places]

            def read(index: Sequence[Any]) -> Any:
                return _read(image, at[:2], index, padding, is_aligned)

            return _mixed(taps, read, image.dtype)

        return te.compute((*image.shape[:2], *grid.shape[1:-1]), element, name="grid_sample")

    return node.kernel(sampled, node.input(0), node.input(1), name="grid_sample")


def _pixel(place: Any, extent: Any, is_aligned: bool) -> Any:
    """Return a place from -1 to 1 in pixels: from the first's middle to the last's, or from edge to edge."""
    size, half, one = extent.astype(_type(place)), tirx.const(0.5, _type(place)), tirx.const(1, _type(place))
    return (place + one) * half * (size - one) if is_aligned else ((place + one) * size - one) * half


def _nearest(place: Any) -> Any:
    return tirx.nearbyint(place)


def _kept(place: Any, extent: Any, padding: str, is_aligned: bool) -> Any:
    """Return a place in pixels that is within the image, where the padding repeats or mirrors it."""
    if padding == "zeros":
        return place
    dtype = _type(place)
    low = tirx.const(0 if is_aligned else -0.5, dtype)
    high = extent.astype(dtype) - tirx.const(1 if is_aligned else 0.5, dtype)
    if padding == "border":
        kept = tirx.max(tirx.min(place, extent.astype(dtype) - tirx.const(1, dtype)), tirx.const(0, dtype))
    else:
        kept = _mirrored(place, low, high)
    return tirx.Select(tirx.any(place < low, place > high), kept, place)


def _mirrored(place: Any, low: Any, high: Any) -> Any:
    """Return a place mirrored at the edges until it lies between them."""
    dtype = _type(place)
    span, zero = high - low, tirx.const(0, dtype)
    step = tirx.Select(span > zero, span, tirx.const(1, dtype))
    beyond = tirx.Select(place < low, low - place, place - high)
    times = tirx.floor(beyond / step)
    rest = beyond - times * step
    is_even = (times - tirx.const(2, dtype) * tirx.floor(times * tirx.const(0.5, dtype))).equal(zero)
    is_below = place < low
    from_low = tirx.any(tirx.all(is_even, is_below), tirx.all(tirx.Not(is_even), tirx.Not(is_below)))
    return tirx.Select(span > zero, tirx.Select(from_low, low + rest, high - rest), low)


def _mirrored_pixel(position: Any, extent: Any, is_aligned: bool) -> Any:
    """Return a pixel mirrored at the middles of the first and the last, or at their edges, until it is one of them."""
    period = tirx.max(2 * (extent - 1), 1) if is_aligned else 2 * extent
    within = tirx.floormod(position, period)
    return tirx.min(within, period - within - (0 if is_aligned else 1))


def _taps(place: Any, mode: str) -> list[tuple[Any, Any]]:
    """Return the pixels of an axis that are read for a place, with their weights."""
    if mode == "nearest":
        return [(place.astype("int64"), None)]
    low = tirx.floor(place)
    first, part, one = low.astype("int64"), place - low, tirx.const(1, _type(place))
    if mode == "linear":
        return [(first, one - part), (first + 1, part)]
    if mode != "cubic":
        raise NotImplementedError(f"mode {mode}")
    return [(first - 1, _far(part + one)), (first, _near(part)), (first + 1, _near(one - part)),
            (first + 2, _far(one - part + one))]  # fmt: skip


def _type(value: Any) -> str:
    """Return the element type of an expression."""
    return str(value.ty)


def _near(x: Any) -> Any:
    a, b, one = (tirx.const(number, _type(x)) for number in (KEYS + 2, KEYS + 3, 1))
    return (a * x - b) * x * x + one


def _far(x: Any) -> Any:
    a, b, c, d = (tirx.const(number, _type(x)) for number in (KEYS, 5 * KEYS, 8 * KEYS, 4 * KEYS))
    return ((a * x - b) * x + c) * x - d


def _read(image: Any, outer: Sequence[Any], index: Sequence[Any], padding: str, is_aligned: bool) -> Any:
    """Return a pixel; one outside of the image is 0, or one of it."""
    extents = image.shape[len(outer) :]
    places, inside = [], []
    for position, extent in zip(index, extents, strict=True):
        place = _mirrored_pixel(position, extent, is_aligned) if padding == "reflection" else position
        places.append(tirx.max(tirx.min(place, extent - 1), 0))
        inside += [position >= 0, position < extent]
    value = image(*outer, *places)
    return tirx.Select(tirx.all(*inside), value, tirx.const(0, image.dtype)) if padding == "zeros" else value


def _mixed(taps: Sequence[Sequence[tuple[Any, Any]]], read: Any, dtype: str) -> Any:
    """Return the sum of pixels, each times its weights on all axes."""
    total = None
    for choice in combinations(*taps):
        value = read([pixel for pixel, _ in choice])
        for _, weight in choice:
            if weight is not None:
                value = value * weight.astype(dtype)
        total = value if total is None else total + value
    return total


def _deform(node: NodeImport) -> Any:
    """DeformConv: each weight reads its pixel where an offset has moved it to; a product of matrices adds them up."""
    kernel, groups = kernel_of(node), int(node.attributes.get("group", 1))
    if node.dtype() not in FLOATS:
        raise NotImplementedError(f"a convolution of {node.dtype()}")
    filters, depth, out = node.shape(1)[0], node.shape(1)[1], node.result_shape()
    if not isinstance(filters, int) or not isinstance(depth, int):
        raise NotImplementedError("weights whose extents are computed")
    batch, pixels, taps = out[0], product(out[2:]), prod(kernel)
    tensors = [node.input(0), node.input(2)] + ([node.input(4)] if node.has(4) else [])
    window = Window.of(node, kernel)
    if window.padding is None:
        raise NotImplementedError("padding that hangs on an extent")
    sizes = (batch, node.shape()[1], taps, *out[2:])
    columns = node.kernel(_columns(node, window), *tensors, sizes=sizes, name="deformed_columns")
    columns = node.reshape(columns, (batch, groups, depth * taps, pixels))
    weight = node.reshape(node.input(1), (groups, filters // groups, depth * taps))
    found = node.reshape(node.emit(op.matmul(weight, columns)), out)
    if not node.has(3):
        return found
    return op.add(found, node.reshape(node.input(3), (1, filters, *(1,) * len(kernel))))


def _columns(node: NodeImport, window: Window) -> Any:
    """Return the tensor expression of what each weight reads: (N, C, weights, ...)."""
    space, parts = len(window.kernel), int(node.attributes.get("offset_group", 1))
    taps = prod(window.kernel)
    starts = [int(pad) for pad in window.padding or ()][:space]

    def columns(image: Any, offset: Any, *rest: Any) -> Any:
        mask, extents = (rest[0], rest[1:]) if len(rest) > space + 3 else (None, rest)
        channels = image.shape[1] // parts

        def element(n: Any, c: Any, k: Any, *at: Any) -> Any:
            part, places, left = c // channels, [], k
            for axis in reversed(range(space)):
                tap, left = left % window.kernel[axis], left // window.kernel[axis]
                moved = offset(n, (part * taps + k) * space + axis, *at)
                fixed = at[axis] * window.strides[axis] - starts[axis] + tap * window.dilations[axis]
                places.append(fixed.astype(_type(moved)) + moved)
            axes = [_taps(place, "linear") for place in reversed(places)]
            value = _mixed(axes, lambda index: _read(image, (n, c), index, "zeros", True), image.dtype)
            return value if mask is None else value * mask(n, part * taps + k, *at)

        return te.compute(extents, element, name="deformed_columns")

    return columns


CONVERTERS: Mapping[str, Converter] = {"DeformConv": _deform, "GridSample": _grid_sample}
