"""Regions of images: RoiAlign, MaxRoiPool, and what puts pixels back from where they came: MaxUnpool and Col2Im."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import te, tirx
from tvm.relax import op
from tvm.script import tirx as T

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.operators.data_movement import padded
from forge_pipeline.codegen.onnx_import.operators.network.taps import one_of
from forge_pipeline.codegen.sorting.rows import attributes, called, extents_of, own, unravelled
from forge_pipeline.codegen.sorting.scatter import scatter_elements
from forge_pipeline.codegen.tir import script
from forge_pipeline.ir.sizes.expression import product

SAMPLES = 64
"""Places in a cell of a region whose pixels and weights are found together, for all channels."""


def _roi_align(node: NodeImport) -> Any:
    """RoiAlign (He et al., 2017): the mean, or the greatest part, of pixels read between pixels."""
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    is_half = node.text("coordinate_transformation_mode", default) == "half_pixel"
    operands = [node.input(index) for index in range(3)]
    kernel = _align_kernel(
        [extents_of(operand) for operand in operands],
        (int(node.attributes.get("output_height", 1)), int(node.attributes.get("output_width", 1))),
        (node.dtype(), node.dtype(2)),
        scale=float(node.attributes.get("spatial_scale", 1.0)),
        ratio=int(node.attributes.get("sampling_ratio", 0)),
        is_half=is_half,
        is_max=node.text("mode", "avg") == "max",
    )
    wanted = list(node.sizes(node.result_shape()).values)
    return called(node.scope.builder, kernel, operands, [(wanted, node.dtype())])[0]


def _align_kernel(
    shapes: list[Any],
    pooled: tuple[int, int],
    dtypes: tuple[str, str],
    *,
    scale: float,
    ratio: int,
    is_half: bool,
    is_max: bool,
) -> Any:
    """Return ``(image, rois (R, 4), batches (R,)) -> (R, C, height, width)``."""
    image, boxes, places = own(*shapes)
    dtype, place_dtype = dtypes
    _, channels, height, width = image
    result = (boxes[0], channels, *pooled)

    def const(number: float) -> Any:
        return tirx.const(number, dtype)

    def corner(box: Any, roi: Any, index: int) -> Any:
        return box[roi, index] * const(scale) - const(0.5 if is_half else 0.0)

    def side(box: Any, roi: Any, axis: int) -> Any:
        length = corner(box, roi, 3 - axis) - corner(box, roi, 1 - axis)
        return (length if is_half else tirx.max(length, const(1))) / const(pooled[axis])

    def samples(step: Any) -> Any:
        return tirx.const(ratio, "int64") if ratio > 0 else tirx.ceil(step).astype("int64")

    def around(place: Any, extent: Any) -> tuple[Any, Any, Any]:
        kept = tirx.max(place, const(0))
        low = tirx.max(tirx.min(kept.astype("int64"), extent - 1), 0)
        part = tirx.Select(low >= extent - 1, const(0), kept - low.astype(dtype))
        return low, tirx.min(low + 1, extent - 1), part

    def corners(y: Any, x: Any) -> list[tuple[Any, Any]]:
        """Return where, in a channel, the four pixels around a place are, with their weights: 0 far outside."""
        inside = tirx.all(y >= const(-1), y <= height.astype(dtype), x >= const(-1), x <= width.astype(dtype))
        (top, bottom, v), (left, right, u) = around(y, height), around(x, width)
        one = const(1)
        found = [(top, left, (one - v) * (one - u)), (top, right, (one - v) * u)]
        found += [(bottom, left, v * (one - u)), (bottom, right, v * u)]
        return [(row * width + column, tirx.Select(inside, weight, const(0))) for row, column, weight in found]

    def weighted(source: Any, batch: Any, channel: Any, PLACES: Any, WEIGHTS: Any, sample: Any) -> Any:
        """Return the four pixels of a sample: their sum, or the greatest."""
        a, b, c, d = (
            WEIGHTS[corner, sample] * source[(batch, channel, *unravelled(PLACES[corner, sample], (height, width)))]
            for corner in range(4)
        )
        return tirx.max(tirx.max(a, b), tirx.max(c, d)) if is_max else a + b + c + d

    def spot(begin: Any, step: Any, cell: Any, sample: Any, count: Any) -> Any:
        return begin + cell.astype(dtype) * step + (sample.astype(dtype) + const(0.5)) * step / count.astype(dtype)

    def joined(total: Any, value: Any, is_first: Any) -> Any:
        return tirx.Select(is_first, value, tirx.max(total, value)) if is_max else total + value

    def finished(total: Any, count: Any) -> Any:
        return total if is_max else total / tirx.max(count, tirx.const(1, "int64")).astype(dtype)

    @script.inline
    def place(PLACES, WEIGHTS, sample, y, x):  # type: ignore[no-untyped-def]
        for corner in T.unroll(4):
            PLACES[corner, sample] = one_of([place for place, _ in corners(y, x)], corner)
            WEIGHTS[corner, sample] = one_of([weight for _, weight in corners(y, x)], corner)

    @script.prim_func(s_tir=True, private=True)
    def roi_align(a: T.handle, b: T.handle, c: T.handle, d: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes("roi_align"))
        X = T.match_buffer(a, image, dtype)
        B = T.match_buffer(b, boxes, dtype)
        P = T.match_buffer(c, places, place_dtype)
        Y = T.match_buffer(d, result, dtype)
        for roi in T.parallel(boxes[0]):
            with T.sblock("roi"):
                r = T.axis.opaque(boxes[0], roi)
                T.reads()
                T.writes()
                steps = T.sblock_alloc_buffer((2,), dtype, scope="local")
                counts = T.sblock_alloc_buffer((2,), "int64", scope="local")
                total = T.sblock_alloc_buffer((1,), dtype, scope="local")
                PLACES = T.sblock_alloc_buffer((4, SAMPLES), "int64", scope="local")
                WEIGHTS = T.sblock_alloc_buffer((4, SAMPLES), dtype, scope="local")
                steps[0] = side(B, r, 0)
                steps[1] = side(B, r, 1)
                counts[0] = T.max(samples(steps[0]), T.int64(0))
                counts[1] = T.max(samples(steps[1]), T.int64(0))
                for i, j in T.grid(pooled[0], pooled[1]):
                    for channel in T.serial(channels):
                        Y[r, channel, i, j] = const(0)
                    for part in T.serial((counts[0] * counts[1] + (SAMPLES - 1)) // SAMPLES):
                        for s in T.serial(T.min(SAMPLES, counts[0] * counts[1] - part * SAMPLES)):
                            place(
                                PLACES,
                                WEIGHTS,
                                s,
                                spot(corner(B, r, 1), steps[0], i, (part * SAMPLES + s) // counts[1], counts[0]),
                                spot(corner(B, r, 0), steps[1], j, (part * SAMPLES + s) % counts[1], counts[1]),
                            )
                        for channel in T.serial(channels):
                            total[0] = Y[r, channel, i, j]
                            for s in T.serial(T.min(SAMPLES, counts[0] * counts[1] - part * SAMPLES)):
                                total[0] = joined(
                                    total[0],
                                    weighted(X, T.cast(P[r], "int64"), channel, PLACES, WEIGHTS, s),
                                    T.And(part == 0, s == 0),
                                )
                            Y[r, channel, i, j] = total[0]
                    for channel in T.serial(channels):
                        Y[r, channel, i, j] = finished(Y[r, channel, i, j], counts[0] * counts[1])

    return roi_align


def _max_roi_pool(node: NodeImport) -> Any:
    """MaxRoiPool (Girshick, 2015): the greatest pixel of each cell; 0 where a cell has none."""
    operands = [node.input(0), node.input(1)]
    pooled = tuple(int(extent) for extent in node.attributes["pooled_shape"])
    scale = float(node.attributes.get("spatial_scale", 1.0))
    kernel = _pool_kernel([extents_of(operand) for operand in operands], (pooled[0], pooled[1]), node.dtype(), scale)
    wanted = list(node.sizes(node.result_shape()).values)
    return called(node.scope.builder, kernel, operands, [(wanted, node.dtype())])[0]


def _pool_kernel(shapes: list[Any], pooled: tuple[int, int], dtype: str, scale: float) -> Any:
    """Return ``(image, rois (R, 5)) -> (R, C, height, width)``; a roi is its image and two corners."""
    image, boxes = own(*shapes)
    extents, channels = image[2:], image[1]
    result = (boxes[0], channels, *pooled)

    def corner(box: Any, roi: Any, index: int) -> Any:
        return tirx.round(box[roi, index] * tirx.const(scale, dtype)).astype("int64")

    def edge(box: Any, roi: Any, axis: int, cell: Any, *, is_last: bool) -> Any:
        """Return the first pixel of a cell, or the one behind its last."""
        begin, end = corner(box, roi, 2 - axis), corner(box, roi, 4 - axis)
        step = tirx.max(end - begin + 1, tirx.const(1, "int64")).astype(dtype) / tirx.const(pooled[axis], dtype)
        place = (cell + (1 if is_last else 0)).astype(dtype) * step
        pixel = (tirx.ceil(place) if is_last else tirx.floor(place)).astype("int64") + begin
        return tirx.max(tirx.min(pixel, extents[axis]), tirx.const(0, "int64"))

    def length(box: Any, roi: Any, axis: int, cell: Any) -> Any:
        span = edge(box, roi, axis, cell, is_last=True) - edge(box, roi, axis, cell, is_last=False)
        return tirx.max(span, tirx.const(0, "int64"))

    @script.prim_func(s_tir=True, private=True)
    def max_roi_pool(a: T.handle, b: T.handle, c: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes("max_roi_pool"))
        X = T.match_buffer(a, image, dtype)
        B = T.match_buffer(b, boxes, dtype)
        Y = T.match_buffer(c, result, dtype)
        for roi in T.parallel(boxes[0]):
            with T.sblock("roi"):
                r = T.axis.opaque(boxes[0], roi)
                T.reads()
                T.writes()
                best = T.sblock_alloc_buffer((1,), dtype, scope="local")
                for channel in T.serial(channels):
                    for i, j in T.grid(pooled[0], pooled[1]):
                        best[0] = T.min_value(dtype)
                        for y in T.serial(length(B, r, 0, i)):
                            for x in T.serial(length(B, r, 1, j)):
                                best[0] = T.max(
                                    best[0],
                                    X[
                                        T.cast(B[r, 0], "int64"),
                                        channel,
                                        edge(B, r, 0, i, is_last=False) + y,
                                        edge(B, r, 1, j, is_last=False) + x,
                                    ],
                                )
                        Y[r, channel, i, j] = T.if_then_else(
                            T.And(length(B, r, 0, i) > 0, length(B, r, 1, j) > 0), best[0], tirx.const(0, dtype)
                        )

    return max_roi_pool


def _max_unpool(node: NodeImport) -> Any:
    """MaxUnpool: each pixel at its place in what was pooled, which lies in a corner of a larger result; else 0."""
    kernel = [int(width) for width in node.attributes["kernel_shape"]]
    ones = (1,) * len(kernel)
    strides, pads = node.attributes.get("strides", ones), tuple(node.attributes.get("pads", ())) or (0, 0) * len(kernel)
    shape, wanted = node.shape(), node.result_shape()
    pixels = [
        (extent - 1) * stride - before - after + width
        for extent, stride, before, after, width in zip(
            shape[2:], strides, pads[: len(kernel)], pads[len(kernel) :], kernel, strict=True
        )
    ]
    source, count, dtype = (*shape[:2], *pixels), product(shape), node.dtype()
    nothing = node.emit(op.full(node.sizes([product(source)]), node.const(0, dtype), dtype))
    values, places = node.reshape(node.input(0), [count]), node.reshape(node.input(1), [count])
    found = node.reshape(scatter_elements(node.scope.builder, nothing, places, values, axis=0), source)
    if wanted == source:
        return found
    after = [extent - before for extent, before in zip(wanted, source, strict=True)]
    if any(isinstance(extent, int) and extent < 0 for extent in after):
        raise NotImplementedError("an output_shape that is smaller than what was pooled")
    return padded(node, found, (0,) * len(source), after, source)


def _column_to_image(node: NodeImport) -> Any:
    """Col2Im: each pixel is the sum of all that blocks have at its place, which is one number where none overlap."""
    blocks = node.contents(2, "a block's extents")
    if not all(isinstance(extent, int) for extent in blocks):
        raise NotImplementedError("a block's extents that hang on others")
    kernel = [int(extent) for extent in blocks if isinstance(extent, int)]
    space = len(kernel)
    ones = (1,) * space
    strides, dilations = (tuple(node.attributes.get(name, ones)) for name in ("strides", "dilations"))
    pads = tuple(node.attributes.get("pads", ())) or (0,) * (2 * space)
    dtype = node.dtype()
    do_touch = strides != tuple(kernel) or any(pads) or any(dilation > 1 for dilation in dilations)

    def apart(columns: Any, *extents: Any) -> Any:
        counts = [extent // width for extent, width in zip(extents[2:], kernel, strict=True)]

        def element(n: Any, c: Any, *at: Any) -> Any:
            tap, block, fits = c, tirx.const(0, "int64"), []
            for place, width, count in zip(at, kernel, counts, strict=True):
                tap, block = tap * width + tirx.floormod(place, width), block * count + tirx.floordiv(place, width)
                fits.append(place < count * width)
            return tirx.if_then_else(tirx.all(*fits), columns(n, tap, block), tirx.const(0, dtype))

        return te.compute(extents, element, name="col2im")

    def gathered(columns: Any, *extents: Any) -> Any:
        taps = [te.reduce_axis((0, width), name=f"k{axis}") for axis, width in enumerate(kernel)]
        counts = [
            (extents[2 + axis] + pads[axis] + pads[space + axis] - dilations[axis] * (kernel[axis] - 1) - 1)
            // strides[axis]
            + 1
            for axis in range(space)
        ]

        def element(n: Any, c: Any, *at: Any) -> Any:
            tap, block, fits = c, tirx.const(0, "int64"), []
            for axis in range(space):
                moved = at[axis] + pads[axis] - taps[axis] * dilations[axis]
                place = tirx.floordiv(moved, strides[axis])
                fits += [moved >= 0, tirx.floormod(moved, strides[axis]).equal(0), place < counts[axis]]
                tap, block = tap * kernel[axis] + taps[axis], block * counts[axis] + place
            value = tirx.if_then_else(tirx.all(*fits), columns(n, tap, block), tirx.const(0, dtype))
            return te.sum(value, axis=taps)

        return te.compute(extents, element, name="col2im")

    return node.kernel(gathered if do_touch else apart, node.input(0), sizes=node.result_shape(), name="col2im")


CONVERTERS: Mapping[str, Converter] = {
    "Col2Im": _column_to_image,
    "MaxRoiPool": _max_roi_pool,
    "MaxUnpool": _max_unpool,
    "RoiAlign": _roi_align,
}
