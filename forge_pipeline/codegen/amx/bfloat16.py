"""Convolutions of one group and products by constant weights of floats rounded to bfloat16, in AMX's tiles."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from forge_pipeline.codegen.amx.lines import (
    Planes,
    lines_of_image,
    lines_of_matrix,
    taps_in_rows,
)
from forge_pipeline.codegen.amx.operands import PAIRS, WORDS_OF_PAIRS
from forge_pipeline.codegen.amx.products import (
    blocked_shape,
    is_worth,
    of_image,
    of_matrix,
    sums_of,
    sums_of_image,
    typical_pixels,
    typical_rows,
)
from forge_pipeline.codegen.amx.tiles import LANES
from forge_pipeline.codegen.float32.conv.geometry import Geometry, pad_image
from forge_pipeline.codegen.layout.builder import Array, Graph, Value
from forge_pipeline.codegen.tir import bfloat16_pairs


def emit(graph: Graph, source: Value, weight: Array, geometry: Geometry) -> relax.Expr | None:
    """Emit a convolution of one group; the result is blocked. None where vectors serve as well."""
    machine, rows = graph.machine, typical_pixels(geometry)
    if not (machine.amx and machine.pairs) or machine.lanes != LANES or geometry.groups != 1 or graph.channels_last:
        return None
    has_planes = geometry.is_static and geometry.channels < LANES and not graph.is_blocked(source)
    planes = Planes.of(geometry, PAIRS.at_once) if has_planes else None
    if planes is not None and planes.pays(PAIRS):
        image = graph.kernel(planes_of, graph.plain(source), name="pairs_of_channels", geometry=planes.padded)
        panels = graph.constant(PAIRS.pack(planes.pack(weight)))
        return graph.kernel(convolve_planes, image, panels, name="conv2d_planar", planes=planes)
    steps = taps_in_rows(weight, LANES)
    if geometry.channels < LANES or not is_worth(PAIRS, rows, steps.shape, geometry.steps):
        return None
    panels = graph.constant(PAIRS.pack(steps))
    return graph.kernel(convolve, graph.halves(source), panels, name="conv2d", geometry=geometry)


def emit_product(graph: Graph, source: Value, shape: tuple[Any, ...], weight: Array) -> relax.Expr | None:
    """Emit (.., rows, steps), which is of ``shape``, times (steps, columns); None where vectors serve as well."""
    if not (graph.machine.amx and graph.machine.pairs) or not is_worth(
        PAIRS, typical_rows(shape[:-1]), (1, *weight.shape)
    ):
        return None
    panels = graph.constant(PAIRS.pack(weight[None]))
    rows = graph.plain(source) if graph.is_input(source) else graph.bits(source)
    return graph.kernel(multiply, rows, panels, name="dense", columns=weight.shape[1])


def multiply(left: te.Tensor, panels: te.Tensor, columns: int) -> te.Tensor:
    """Describe (.., rows, steps) times packed weights."""
    lines = lines_of_matrix(left, PAIRS)
    sums = sums_of(lines, panels, PAIRS, int(lines.shape[3]))
    return of_matrix(sums, left.shape[:-1], columns, lambda total, _: total, "product")


def convolve(image: te.Tensor, panels: te.Tensor, geometry: Geometry) -> te.Tensor:
    """Describe the convolution of a blocked image in bfloat16 with packed weights."""
    geometry = geometry.of(image)
    lines, taps = lines_of_image(image, PAIRS, geometry, 0)
    sums = sums_of_image(lines, panels, PAIRS, geometry, taps)
    return te.compute(blocked_shape(image, geometry), of_image(sums, geometry, taps), name="convolve")


def planes_of(image: te.Tensor, geometry: Geometry) -> te.Tensor:
    """Describe an image in plain form, padded, as pairs of channels in bfloat16: (batch, pairs, height, width)."""
    batch, channels, height, width = image.shape
    last = int(channels) - 1

    def pair(n: Any, plane: Any, y: Any, x: Any) -> Any:
        second = image(n, tirx.min(2 * plane + 1, last), y, x)
        if last % 2 == 0:
            second = tirx.if_then_else(2 * plane < last, second, tirx.const(0, "float32"))
        return bfloat16_pairs.pair(image(n, 2 * plane, y, x), second)

    pairs = te.compute((batch, last // 2 + 1, height, width), pair, name="pair")
    return pad_image(pairs, geometry, by_rows=True)


def convolve_planes(image: te.Tensor, panels: te.Tensor, planes: Planes) -> te.Tensor:
    """Describe the convolution of padded planes of pairs with packed weights."""
    geometry, taps = planes.geometry, planes.taps
    sums = sums_of_image(planes.lines(image), panels, WORDS_OF_PAIRS, geometry, taps)
    return te.compute(blocked_shape(image, geometry), of_image(sums, geometry, taps), name="convolve")
