"""Direct convolution over blocked channels (Georganas et al., 2018), of any kernel, stride, dilation and group.

An image with fewer channels than a vector has lanes (most often a network's input) is read in its plain form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from tvm import relax, te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from forge_pipeline.codegen.float32 import dynamic_shape
from forge_pipeline.codegen.float32.conv_geometry import Geometry, surround
from forge_pipeline.codegen.layout.builder import Array, Graph, Value
from forge_pipeline.codegen.tir import flatten_pixels, primitives
from forge_pipeline.codegen.tir.machine import Machine, Tile, choose_tile, divisors

NAME = "direct"
BANDS, PIXELS, VECTORS = "forge.bands", "forge.pixels", "forge.vectors"
"""Annotations of the block that sums: the plan."""

FLAT = "forge.flat"
"""The annotation of a block whose tiles cross rows: the pixels of a row."""

RESIDENT = 1 << 20
"""Bytes of weights above which integer kernels put the loop over filters outside, so that weights are read once."""


def emit(graph: Graph, source: Value, weight: Array, geometry: Geometry) -> relax.Expr:
    """Emit the convolution; the result is blocked."""
    machine = graph.machine
    geometry, weight = merge_groups(geometry, weight, machine.lanes)
    planar = geometry.groups == 1 and geometry.channels < machine.lanes and not graph.is_blocked(source)
    image = graph.plain(source) if planar else graph.blocked(source)
    plan = choose_plan(machine, geometry) if geometry.is_sized else None
    packed = pack_weight(weight, machine.lanes, block_channels=not planar, rows=plan.rows if plan else None)
    name = "conv2d_planar" if planar else "conv2d"
    return graph.kernel(convolve, image, graph.constant(packed), name=name, geometry=geometry, plan=plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How results are cut: the image's pixels into ``bands``, each band into tiles of pixels by vectors of filters.

    A band's pixels are to stay in the second cache while all filters are computed from them. ``rows`` are the vectors
    of filters, some of them perhaps only there to fill the last tile. ``cycles`` are expected for an image on a core.
    """

    tile: Tile
    bands: int
    rows: int
    cycles: float


@cache
def choose_plan(machine: Machine, geometry: Geometry) -> Plan:
    """Return the plan with the fewest cycles, of equal ones that with the larger bands."""
    rows = -(-geometry.filters // machine.lanes)
    tall, wide = geometry.output
    along, across = (tall * wide, 1) if is_pointwise(geometry) else (tall, wide)
    options = [
        _plan(machine, geometry, stored, band=band, pixels=band if across == 1 else wide, bands=along // band)
        for stored in ((rows, rows + 1) if geometry.groups == 1 else (rows,))
        for band in divisors(along, along)
    ]
    return min(options, key=lambda plan: (plan.cycles, plan.bands))


def _plan(machine: Machine, geometry: Geometry, rows: int, *, band: int, pixels: int, bands: int) -> Plan:
    """Return the plan for bands of ``band`` pixels (or rows of pixels), tiles being cut from ``pixels`` in a row."""
    tall, wide = geometry.output
    channels = geometry.channels // geometry.groups
    per_group = rows // geometry.groups
    tile = choose_tile(machine, pixels=pixels, vectors=per_group, steps=geometry.steps)
    computing = machine.fma_cycles(tall * wide * rows * geometry.steps) / tile.efficiency
    shares = bands if any(geometry.padding) else bands * (rows // tile.vectors)
    idle = -(-shares // machine.cores) * machine.cores / shares
    image = 4 * channels * tall * wide * geometry.strides[0] * geometry.strides[1] // bands
    passes = 1 if image <= machine.l2 // 2 else per_group // tile.vectors
    weights = 4 * geometry.steps * rows * machine.lanes
    reading = bands * machine.streaming_cycles(weights) + bands * passes * machine.streaming_cycles(image)
    return Plan(tile=tile, bands=bands, rows=rows, cycles=computing * idle + reading)


def is_pointwise(geometry: Geometry) -> bool:
    """Return whether results are of one pixel each, in the image's order: a tile may go on in the next row then."""
    return geometry.kernel == (1, 1) and set(geometry.strides) == {1} and not any(geometry.padding)


def cycles(machine: Machine, geometry: Geometry) -> float:
    """Return the cycles that one image is expected to take on one core."""
    return choose_plan(machine, geometry).cycles


def merge_groups(geometry: Geometry, weight: Array, lanes: int) -> tuple[Geometry, Array]:
    """Return an equal convolution whose groups fill whole vectors: neighbours merged, with zeros between them."""
    from dataclasses import replace

    groups = geometry.groups
    if groups == 1:
        return geometry, weight
    inputs, outputs = geometry.channels // groups, geometry.filters // groups
    together = math.lcm(lanes // math.gcd(lanes, inputs), lanes // math.gcd(lanes, outputs))
    if groups % together:
        together = groups
    if together == 1:
        return geometry, weight
    merged = np.zeros((geometry.filters, inputs * together, *geometry.kernel), weight.dtype)
    for group in range(groups):
        rows = slice(group * outputs, (group + 1) * outputs)
        first = group % together * inputs
        merged[rows, first : first + inputs] = weight[rows]
    return replace(geometry, groups=groups // together), merged


def pack_weight(weight: Array, lanes: int, *, block_channels: bool, rows: int | None = None) -> Array:
    """Return (filters, channels, h, w) as (filters / lanes, channels / lanes, h, w, lanes of channel, of filter).

    Without ``block_channels``: (filters / lanes, channels, h, w, lanes of filter). Missing ones are zero, and so are
    those that ``rows`` asks for beyond filters / lanes.
    """
    filters, channels, height, width = weight.shape
    rows = rows or -(-filters // lanes)
    columns = -(-channels // lanes) * lanes if block_channels else channels
    full = np.zeros((rows * lanes, columns, height, width), np.float32)
    full[:filters, :channels] = weight
    if not block_channels:
        return full.reshape(rows, lanes, columns, height, width).transpose(0, 2, 3, 4, 1)
    blocked = full.reshape(rows, lanes, columns // lanes, lanes, height, width)
    return blocked.transpose(0, 2, 4, 5, 3, 1)


def convolve(image: te.Tensor, weight: te.Tensor, geometry: Geometry, plan: Plan | None) -> te.Tensor:
    """Describe the convolution of an image in either form with packed weights; no plan for an image of any size."""
    geometry = geometry.of(image)
    stored, blocks, height, width = (int(extent) for extent in weight.shape[:4])
    lanes, batch = int(weight.shape[-1]), image.shape[0]
    rows, (tall, wide) = -(-geometry.filters // lanes), geometry.output
    rows_per_group = rows // geometry.groups
    padded = surround(image, geometry)
    (down, right), (dilate_down, dilate_right) = geometry.strides, geometry.dilation
    block = te.reduce_axis((0, blocks), "block")
    kernel_h, kernel_w = te.reduce_axis((0, height), "kernel_h"), te.reduce_axis((0, width), "kernel_w")
    axes = [block, kernel_h, kernel_w]
    lane: tuple[Any, ...] = ()
    if len(image.shape) == 5:
        lane = (te.reduce_axis((0, lanes), "channel"),)
        axes += lane

    def element(n: Any, row: Any, h: Any, w: Any, out: Any) -> Any:
        first = row // rows_per_group * blocks if geometry.groups > 1 else 0
        pixel = (h * down + kernel_h * dilate_down, w * right + kernel_w * dilate_right)
        return te.sum(
            padded(n, first + block, *pixel, *lane) * weight(row, block, kernel_h, kernel_w, *lane, out), axis=axes
        )

    attributes: dict[str, Any] = {primitives.FAMILY: NAME}
    if plan is None and is_pointwise(geometry):
        axes = [block, *lane]

        def pixel(n: Any, row: Any, h: Any, w: Any, out: Any) -> Any:
            first = row // rows_per_group * blocks if geometry.groups > 1 else 0
            return te.sum(image(n, first + block, h, w, *lane) * weight(row, block, 0, 0, *lane, out), axis=axes)

        return te.compute(
            (batch, rows, tall, wide, lanes),
            pixel,
            name="convolve",
            attrs={**attributes, flatten_pixels.ANY_ORDER: True},
        )
    if plan is not None:
        attributes |= {BANDS: plan.bands, PIXELS: plan.tile.pixels, VECTORS: plan.tile.vectors}
    if plan is None or not is_pointwise(geometry):
        sums = te.compute((batch, stored, tall, wide, lanes), element, name="sums", attrs=attributes)
        return te.compute((batch, rows, tall, wide, lanes), sums, name="convolve")
    size = tall * wide // plan.bands
    banded = te.compute(  # a band is an axis: a tile that reached over its end would write what another thread does
        (batch, stored, plan.bands, size, lanes),
        lambda n, row, band, p, out: element(n, row, (band * size + p) // wide, (band * size + p) % wide, out),
        name="sums",
        attrs={**attributes, FLAT: wide},
    )

    def read(n: Any, row: Any, h: Any, w: Any, out: Any) -> Any:
        p = h * wide + w
        return banded[n, row, 0, p, out] if plan.bands == 1 else banded[n, row, p // size, p % size, out]

    return te.compute((batch, rows, tall, wide, lanes), read, name="convolve")


def schedule(sch: Schedule, machine: Machine) -> None:
    """Hold a tile of pixels by filters in registers along the reduction; tiles of a band share its pixels."""
    sums = primitives.find(sch, NAME)
    annotations = dict(sch.get(sums).annotations)
    if BANDS not in annotations:
        is_pointwise = flatten_pixels.ANY_ORDER in annotations
        (dynamic_shape.schedule_pointwise if is_pointwise else dynamic_shape.schedule_direct)(sch, machine, sums)
        return
    bands, pixels, vectors = (int(annotations[key]) for key in (BANDS, PIXELS, VECTORS))
    before, last = primitives.split_around(sch, sums)
    work = primitives.product(primitives.extent(sch, loop) for loop in sch.get_loops(sums))
    n, row, band, along, out, *reduction = sch.get_loops(sums)
    between: list[LoopRV] = []
    if FLAT in annotations:
        _cross_rows(sch, sums, last, wide=int(annotations[FLAT]))
    else:
        band, *between = sch.split(band, [bands, None])
    lanes = primitives.static(sch, out)
    row_out, row_in = sch.split(row, [None, vectors])
    along, pixel = sch.split(along, [None, pixels])
    sch.reorder(n, band, row_out, *between, along, *reduction, pixel, row_in, out)
    is_padded = any(primitives.family_of(sch, block) == primitives.PAD for block in before)
    shares_bands = is_padded and bands >= machine.cores
    shared = primitives.fuse(sch, [n, band] if shares_bands else [n, band, row_out])
    depth = len(between) + (3 if shares_bands else 2)
    sch.reverse_compute_at(last, along)
    primitives.parallel_if_worth(sch, shared, work // primitives.MULTIPLY_ADDS)
    for block in before:
        if shares_bands and primitives.family_of(sch, block) == primitives.PAD:
            sch.compute_at(block, shared)
            primitives.vectorize_and_unroll(sch, block, below=100, lanes=lanes)
        else:
            primitives.spread(sch, block, machine)
    sch.vectorize(out)
    sch.unroll(pixel)
    sch.unroll(row_in)
    primitives.vectorize_and_unroll(sch, last, below=depth, lanes=lanes)
    primitives.vectorize_and_unroll(sch, sch.decompose_reduction(sums, reduction[0]), below=depth, lanes=lanes)


def _cross_rows(sch: Schedule, sums: SBlockRV, last: SBlockRV, *, wide: int) -> None:
    """Give the block that writes the output the axes of ``sums``: (n, row, band, pixel, out)."""
    bands, size = (primitives.static(sch, loop) for loop in sch.get_loops(sums)[2:4])
    if bands == 1:
        sch.transform_block_layout(last, lambda n, row, h, w, out: (n, row, h * wide + w, out))
        return
    sch.transform_block_layout(
        last, lambda n, row, h, w, out: (n, row, (h * wide + w) // size, (h * wide + w) % size, out)
    )
    sch.transform_layout(sums, ("write", 0), lambda *index: index)  # changes nothing, but simplifies all indices
