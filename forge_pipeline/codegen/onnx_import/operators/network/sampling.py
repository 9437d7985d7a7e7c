"""Pixels read between the pixels: GridSample and DeformConv.

The equations are those of the ONNX operator reference, GridSample-20 and DeformConv-19, which follow PyTorch's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

from tvm import tirx
from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.operators.elementwise import FLOATS
from forge_pipeline.codegen.onnx_import.operators.network.convolution import kernel_of
from forge_pipeline.codegen.onnx_import.operators.network.taps import COUNTS, Reading, clamped
from forge_pipeline.codegen.onnx_import.operators.network.window import Window
from forge_pipeline.codegen.sorting.rows import unravelled
from forge_pipeline.ir.sizes.expression import product


def _grid_sample(node: NodeImport) -> Any:
    """GridSample over any number of axes; ``grid`` (N, ..., axes) has places from -1 to 1, the last axis first.

    ``border`` moves the pixels that are read into the image, not the place, as PyTorch and ONNX Runtime do. That
    differs where a cubic reads pixels on both sides of an edge.
    """
    mode = node.text("mode", "linear").removeprefix("bi")
    padding, is_aligned = node.text("padding_mode", "zeros"), bool(node.attributes.get("align_corners", 0))
    batch, channels, *out = node.result_shape()
    space = len(out)
    if mode not in COUNTS:
        raise NotImplementedError(f"mode {mode}")
    if node.dtype() == "bool":
        raise NotImplementedError("an image of bool")

    def place(extents: Sequence[Any], tensors: Any, n: Any, group: Any, kind: Any, pixel: Any) -> list[Any]:
        found = []
        for axis, extent in enumerate(extents):
            at = _pixel(tensors[0][n, pixel, space - 1 - axis], extent, is_aligned)
            at = tirx.nearbyint(at) if mode == "nearest" else at
            found.append(_mirrored(at, extent, is_aligned) if padding == "reflection" else at)
        return found

    within = {"zeros": None, "border": clamped, "reflection": partial(_mirrored_pixel, is_aligned=is_aligned)}[padding]
    reading = Reading(place=place, mode=mode, within=within)
    grid = node.reshape(node.input(1), (batch, product(out), space))
    wanted = node.sizes((batch, channels, 1, product(out))).values
    return node.reshape(reading.emit(node.scope.builder, node.input(0), [grid], list(wanted)), (batch, channels, *out))


def _pixel(place: Any, extent: Any, is_aligned: bool) -> Any:
    """Return a place from -1 to 1 in pixels: from the first's middle to the last's, or from edge to edge."""
    size, half, one = extent.astype(_type(place)), tirx.const(0.5, _type(place)), tirx.const(1, _type(place))
    return (place + one) * half * (size - one) if is_aligned else ((place + one) * size - one) * half


def _mirrored(place: Any, extent: Any, is_aligned: bool) -> Any:
    """Return a place in pixels, mirrored at the edges until it lies between them."""
    dtype, margin = _type(place), 0.0 if is_aligned else 0.5
    low, high = tirx.const(-margin, dtype), extent.astype(dtype) - tirx.const(1 - margin, dtype)
    span, zero = high - low, tirx.const(0, dtype)
    step = tirx.Select(span > zero, span, tirx.const(1, dtype))
    beyond = tirx.Select(place < low, low - place, place - high)
    times = tirx.floor(beyond / step)
    rest = beyond - times * step
    is_even = (times - tirx.const(2, dtype) * tirx.floor(times * tirx.const(0.5, dtype))).equal(zero)
    is_below = place < low
    from_low = tirx.any(tirx.all(is_even, is_below), tirx.all(tirx.Not(is_even), tirx.Not(is_below)))
    found = tirx.Select(span > zero, tirx.Select(from_low, low + rest, high - rest), low)
    return tirx.Select(tirx.any(place < low, place > high), found, place)


def _mirrored_pixel(pixel: Any, extent: Any, is_aligned: bool) -> Any:
    """Return a pixel mirrored at the middles of the first and the last, or at their edges, until it is one of them."""
    period = tirx.max(2 * (extent - 1) if is_aligned else 2 * extent, 1)
    within = tirx.floormod(pixel, period)
    return clamped(tirx.min(within, period - within - (0 if is_aligned else 1)), extent)


def _type(value: Any) -> str:
    """Return the element type of an expression."""
    return str(value.ty)


def _deform(node: NodeImport) -> Any:
    """DeformConv: each weight reads its pixel where an offset has moved it to; a convolution adds them up."""
    kernel, groups = kernel_of(node), int(node.attributes.get("group", 1))
    if node.dtype() not in FLOATS:
        raise NotImplementedError(f"a convolution of {node.dtype()}")
    filters, depth, out = node.shape(1)[0], node.shape(1)[1], node.result_shape()
    if not isinstance(filters, int) or not isinstance(depth, int):
        raise NotImplementedError("weights whose extents are computed")
    batch, pixels, count = out[0], product(out[2:]), prod(kernel)
    window = Window.of(node, kernel)
    if window.padding is None:
        raise NotImplementedError("padding that hangs on an extent")
    wanted = list(node.sizes((batch, node.shape()[1], count, pixels)).values)
    offsets = [node.input(index) for index in (2, 4) if node.has(index)]
    columns = _deformed(node, window).emit(node.scope.builder, node.input(0), offsets, wanted)
    image = (batch, groups * depth * count, *(out[2:] if len(kernel) == 2 else (1, pixels)))
    weight = node.reshape(node.input(1), (filters, depth * count, 1, 1))
    found = node.emit(op.nn.conv2d(node.reshape(columns, image), weight, groups=groups))
    if node.has(3):
        found = op.add(found, node.reshape(node.input(3), (1, filters, 1, 1)))
    return node.reshape(node.emit(found), out)


def _deformed(node: NodeImport, window: Window) -> Reading:
    """Return what each weight reads: (N, C, weights, pixels), where an offset has moved it to, times a mask."""
    space, count = len(window.kernel), prod(window.kernel)
    starts = [int(pad) for pad in window.padding or ()][:space]

    def place(extents: Sequence[Any], tensors: Any, n: Any, group: Any, kind: Any, pixel: Any) -> list[Any]:
        at, found = unravelled(pixel, tensors[0].shape[2:]), []
        for axis, tap in enumerate(unravelled(kind, window.kernel)):
            moved = tensors[0][(n, (group * count + kind) * space + axis, *at)]
            fixed = at[axis] * window.strides[axis] - starts[axis] + tap * window.dilations[axis]
            found.append(fixed.astype(str(moved.ty)) + moved)
        return found

    def mask(tensors: Any, n: Any, group: Any, kind: Any, pixel: Any) -> Any:
        return tensors[1][(n, group * count + kind, *unravelled(pixel, tensors[1].shape[2:]))]

    parts = int(node.attributes.get("offset_group", 1))
    return Reading(place=place, mode="linear", scale=mask if node.has(4) else None, groups=parts)


CONVERTERS: Mapping[str, Converter] = {"DeformConv": _deform, "GridSample": _grid_sample}
