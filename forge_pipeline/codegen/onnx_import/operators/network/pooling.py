"""Pools: the greatest, the mean or the p-norm of the pixels in a window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.operators.data_movement import padded
from forge_pipeline.codegen.onnx_import.operators.network.window import Window


def _pool(name: str, node: NodeImport) -> Any:
    """MaxPool and AveragePool, of one to three axes."""
    if node.wants(1):
        return _with_places(node)
    return pooled(node, name, node.input(0), counts_padding=bool(node.attributes.get("count_include_pad", 0)))


def pooled(node: NodeImport, name: str, image: Any, *, counts_padding: bool) -> Any:
    """Emit Relax's pool of that ``name`` over ``image`` with the node's window."""
    window = _window(node)
    space = len(window.kernel)
    if not 1 <= space <= 3:
        raise NotImplementedError(f"a pool over {space} axes")
    ceil_mode = False
    if node.attributes.get("ceil_mode", 0):
        counts_padding = counts_padding and any((*window.before, *window.after))  # what is rounded up is not counted
        window, ceil_mode = _rounded_up(window, is_counted=name == "avg_pool" and counts_padding)
    _check_results(window)
    padding = window.padding
    is_scaled = padding is None and name == "avg_pool" and not counts_padding
    if padding is None:
        filler = _least(node.dtype()) if name == "max_pool" else 0.0
        image = padded(node, image, (0, 0, *window.before), (0, 0, *window.after), node.shape(), filler)
        padding = [0] * (2 * space)
    function = getattr(op.nn, f"{name}{space}d")
    arguments = [list(window.kernel), list(window.strides), padding, list(window.dilations), ceil_mode]
    result = function(image, *arguments, counts_padding or is_scaled)
    return _of_pixels(node, node.emit(result), window) if is_scaled else result


def _of_pixels(node: NodeImport, means: Any, window: Window) -> Any:
    """Turn means that count padding as zeros into those of the pixels alone: padding that hangs on an extent."""
    space, area = len(window.kernel), float(np.prod(window.kernel))
    kind = node.dtype()

    def scaled(mean: Any, *sizes: Any) -> Any:
        starts, extents = sizes[:space], sizes[space:]

        def pixels(axis: int, at: Any) -> Any:
            step, width = window.dilations[axis], window.kernel[axis]
            first = at * window.strides[axis] - starts[axis]
            end = tirx.min((extents[axis] - first + step - 1) // step, width)
            return end - tirx.max((step - 1 - first) // step, 0)

        def value(*at: Any) -> Any:
            counted: Any = 1
            for axis in range(space):
                counted = counted * pixels(axis, at[2 + axis])
            return mean(*at) * (tirx.const(area, kind) / counted.astype(kind))

        return te.compute(mean.shape, value, name="mean_of_pixels")

    known = node.scope.told(means, relax.TensorType(node.sizes(node.result_shape()), kind))
    return node.kernel(scaled, known, sizes=[*window.before, *window.image], name="mean_of_pixels")


def _window(node: NodeImport) -> Window:
    return Window.of(node, [int(width) for width in node.attributes["kernel_shape"]])


def _check_results(window: Window) -> None:
    """Raise NotImplementedError for a pool without results: ONNX Runtime may have one where ONNX has none."""
    for extent, before, after, reach in zip(window.image, window.before, window.after, window.reach, strict=True):
        full = before + extent + after
        if isinstance(full, int) and full < reach:
            raise NotImplementedError(f"a window of {reach} pixels on {full}")


def _rounded_up(window: Window, *, is_counted: bool) -> tuple[Window, bool]:
    """Return the window of a pool whose number of results is rounded up, and whether TVM has to do that.

    A window starts on the image or on the padding before it: ceil((extent + before + after - reach) / stride) + 1
    results, or ceil((extent + before) / stride) if that is less. Both are the results, rounded down, with more padding
    after the image. A mean that counts its padding would count that as well, so it stays as it is.
    """
    rows = list(zip(window.after, window.strides, window.reach, strict=True))
    more = tuple(min(after + stride - 1, reach - 1) for after, stride, reach in rows if isinstance(after, int))
    if not is_counted or more == window.after:
        return replace(window, after=more), False
    kept = map(_without_late, window.image, window.before, window.after, window.strides, window.reach)
    return replace(window, after=tuple(kept)), True


def _without_late(size: Any, before: Any, after: Any, stride: int, reach: int) -> int:
    """Return the padding after an axis with which TVM, rounding up, starts no window behind the image."""
    if after + stride <= reach:  # none would start there, whatever the extent
        return int(after)
    if isinstance(size, int):
        results = -(-(size + before) // stride)
        needed = (results - 1) * stride + reach - size - before
        if needed >= 0:
            return min(int(needed), int(after))
    raise NotImplementedError("ceil_mode with count_include_pad where a window might start behind the image")


def _least(dtype: str) -> float:
    return -np.inf if dtype.startswith(("float", "bfloat")) else int(np.iinfo(dtype).min)


def _with_places(node: NodeImport) -> Any:
    """MaxPool with the places of what it found: indices into the whole tensor, columns first if the node says so."""
    window, shape = _window(node), node.result_shape()
    _check_results(window)
    space, dtype, order = len(window.kernel), node.dtype(), int(node.attributes.get("storage_order", 0))
    before = window.before

    def pool(image: Any, *arguments: Any) -> Any:
        starts, extents = arguments[:space], arguments[space:]
        axes = [te.reduce_axis((0, width)) for width in window.kernel]
        shape = image.shape

        def place(at: Any, steps: Any) -> list[Any]:
            return [
                index * stride - start + step * dilation
                for index, stride, start, step, dilation in zip(
                    at[2:], window.strides, starts, steps, window.dilations, strict=True
                )
            ]

        def read(at: Any, steps: Any) -> tuple[Any, Any]:
            pixel = place(at, steps)
            inside = tirx.all(*(tirx.all(p >= 0, p < extent) for p, extent in zip(pixel, shape[2:], strict=True)))
            value = tirx.if_then_else(inside, image(*at[:2], *pixel), tirx.min_value(dtype))
            flat = at[0] * shape[1] + at[1]
            area: Any = 1
            for extent in shape[2:]:
                area = area * extent
            within: Any = 0
            pairs = list(zip(pixel, shape[2:], strict=True))
            for p, extent in pairs if order == 0 else reversed(pairs):
                within = within * extent + p
            return value, tirx.if_then_else(inside, flat * area + within, tirx.const(-1, "int64"))

        def better(a: Any, b: Any) -> Any:
            """Keep the first of equal values; what lies outside, whose place is -1, loses to everything."""
            keeps = tirx.any(b[1] < 0, tirx.all(a[1] >= 0, tirx.any(a[0] > b[0], tirx.all(a[0] == b[0], a[1] <= b[1]))))
            return tirx.Select(keeps, a[0], b[0]), tirx.Select(keeps, a[1], b[1])

        greatest = te.comm_reducer(better, lambda t0, t1: (tirx.min_value(t0), tirx.const(-1, t1)), name="greatest")
        return te.compute(tuple(extents), lambda *at: greatest(read(at, axes), axis=axes), name="max_pool")

    found = node.kernel(pool, node.input(0), sizes=[*before, *shape], name="max_pool_with_places")
    return [node.part(found, index) for index in range(2)]


def _lp_pool(node: NodeImport) -> Any:
    """``(sum |x|^p)^(1/p)`` of a window, as a mean that counts its padding."""
    dtype, p = node.dtype(), float(node.attributes.get("p", 2))
    powers = node.emit(op.power(node.emit(op.abs(node.input(0))), node.const(p, dtype)))
    mean = node.emit(pooled(node, "avg_pool", powers, counts_padding=True))
    count = float(np.prod(node.attributes["kernel_shape"]))
    return op.power(node.emit(op.multiply(mean, node.const(count, dtype))), node.const(1 / p, dtype))


def _global(name: str, node: NodeImport) -> Any:
    return getattr(op, name)(node.input(0), axis=list(range(2, node.rank())), keepdims=True)


def _global_lp(node: NodeImport) -> Any:
    dtype, p = node.dtype(), float(node.attributes.get("p", 2))
    powers = node.emit(op.power(node.emit(op.abs(node.input(0))), node.const(p, dtype)))
    total = node.emit(op.sum(powers, list(range(2, node.rank())), keepdims=True))
    return op.power(total, node.const(1 / p, dtype))


CONVERTERS: Mapping[str, Converter] = {
    "AveragePool": partial(_pool, "avg_pool"),
    "GlobalAveragePool": partial(_global, "mean"),
    "GlobalLpPool": _global_lp,
    "GlobalMaxPool": partial(_global, "max"),
    "LpPool": _lp_pool,
    "MaxPool": partial(_pool, "max_pool"),
}
