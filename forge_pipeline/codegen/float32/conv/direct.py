"""Direct convolution over blocked channels (Georganas et al., 2018), of any kernel, stride, dilation and group.

An image with fewer channels than a vector has lanes (most often a network's input) is read in its plain form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from forge_pipeline.codegen.float32.conv import dynamic_shape
from forge_pipeline.codegen.float32.conv.geometry import Geometry, pad_image
from forge_pipeline.codegen.layout.builder import Array, Graph, Stored, Value
from forge_pipeline.codegen.tir import bfloat16_pairs, flatten_pixels, primitives
from forge_pipeline.codegen.tir.machine import Machine, Tile, choose_tile, divisors
from forge_pipeline.codegen.tir.prefetch import ask_for_next

NAME = "direct"
ROW_BLOCKS, PIXELS, VECTORS = "forge.row_blocks", "forge.pixels", "forge.vectors"
"""Annotations of the block that sums: the plan."""

FLAT = "forge.flat"
"""The annotation of a block whose tiles cross rows: the pixels of a row."""

COPYING = 1.5
"""How many times fewer the products have to be to pay for copies of the image and of the result."""

LEAST_AT_ONCE = 4
"""Channels that the inner loop of a sum takes at least: fewer cost more in loops than zeros do."""

RESIDENT = 1 << 20
"""Bytes of weights above which integer kernels put the loop over filters outside, so that weights are read once."""


def emit(graph: Graph, source: Value, weight: Array, geometry: Geometry, stored: Stored | None = None) -> relax.Expr:
    """Emit the convolution; the result is blocked. ``stored`` takes packed weights, and returns them in the graph."""
    machine = graph.machine.computing(str(weight.dtype))
    geometry, weight = fill_groups(geometry, weight, machine.lanes)
    apart = pad_groups(geometry, weight, machine.lanes)
    if apart is not None:
        groups = geometry.groups
        image = graph.kernel(move_groups, graph.blocked(source), name="groups_apart", groups=groups,
                             channels=geometry.channels // groups, to=apart[0].channels // groups)  # fmt: skip
        result = emit(graph, Value(blocked=image, channels=apart[0].channels), apart[1], apart[0], stored)
        if not geometry.is_static:
            result = graph.named(result)
        return graph.kernel(move_groups, result, name="groups_together", groups=groups,
                            channels=geometry.filters // groups, to=geometry.filters // groups)  # fmt: skip
    geometry, weight = merge_groups(geometry, weight, machine.lanes)
    is_nchw = geometry.groups == 1 and geometry.channels < machine.lanes and not graph.is_blocked(source)
    is_paired = not is_nchw and stored is None and in_pairs(machine, geometry)
    image = graph.plain(source) if is_nchw else graph.halves(source) if is_paired else graph.blocked(source)
    plan = choose_plan(machine, geometry) if geometry.is_static else None
    unit = None if is_nchw else channels_at_once(geometry.channels // geometry.groups, machine.lanes)
    packed = pack_weight(weight, machine.lanes, unit, oc_blocks=plan.oc_blocks if plan else None)
    if is_paired:
        packed = bfloat16_pairs.paired(packed[..., ::2, :], packed[..., 1::2, :])
    name = "conv2d_planar" if is_nchw else "conv2d"
    return graph.kernel(convolve, image, (stored or graph.constant)(packed), name=name, geometry=geometry, plan=plan)


def in_pairs(machine: Machine, geometry: Geometry) -> bool:
    """Return whether an image in blocks is read in bfloat16, and multiplied in pairs of neighbouring channels."""
    return machine.multiplies_pairs(None) and geometry.channels >= machine.lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How results are cut: the image into ``row_blocks``, each of them into tiles of pixels by vectors of filters.

    A row block's pixels are to stay in the second cache while all filters are computed from them. ``oc_blocks`` are the
    vectors of filters, some perhaps only there to fill the last tile. ``cycles`` are expected for an image on a core.
    """

    tile: Tile
    row_blocks: int
    oc_blocks: int
    cycles: float


@cache
def choose_plan(machine: Machine, geometry: Geometry) -> Plan:
    """Return the plan with the fewest cycles, of equal ones that with the larger row blocks."""
    oc_blocks = -(-geometry.filters // machine.lanes)
    rows, columns = geometry.output
    if columns == 1:  # tiles go down the image
        rows, columns = columns, rows
    is_flat = is_pointwise(geometry)
    extent = rows * columns if is_flat else rows
    options = [
        _plan(machine, geometry, stored, pixels=size if is_flat else columns, row_blocks=extent // size)
        for stored in ((oc_blocks, oc_blocks + 1) if geometry.groups == 1 else (oc_blocks,))
        for size in divisors(extent, extent)
    ]
    return min(options, key=lambda plan: (plan.cycles, plan.row_blocks))


def _plan(machine: Machine, geometry: Geometry, oc_blocks: int, *, pixels: int, row_blocks: int) -> Plan:
    """Return the plan for ``row_blocks``, tiles being cut from ``pixels`` in a row."""
    out_h, out_w = geometry.output
    steps, item = (geometry.steps, machine.item) if not in_pairs(machine, geometry) else (geometry.steps // 2, 2)
    channels = geometry.channels // geometry.groups
    per_group = oc_blocks // geometry.groups
    tile = choose_tile(machine, pixels=pixels, vectors=per_group, steps=steps)
    computing = machine.fma_cycles(out_h * out_w * oc_blocks * steps) / tile.efficiency
    shares = row_blocks if any(geometry.padding) else row_blocks * (oc_blocks // tile.vectors)
    idle = -(-shares // machine.cores) * machine.cores / shares
    image = item * channels * out_h * out_w * geometry.strides[0] * geometry.strides[1] // row_blocks
    passes = 1 if image <= machine.l2 // 2 else per_group // tile.vectors
    weights = item * geometry.steps * oc_blocks * machine.lanes
    reading = row_blocks * machine.streaming_cycles(weights) + row_blocks * passes * machine.streaming_cycles(image)
    return Plan(tile=tile, row_blocks=row_blocks, oc_blocks=oc_blocks, cycles=computing * idle + reading)


def is_pointwise(geometry: Geometry) -> bool:
    """Return whether results are of one pixel each, in the image's order: a tile may go on in the next row then."""
    return geometry.kernel == (1, 1) and set(geometry.strides) == {1} and not any(geometry.padding)


def cycles(machine: Machine, geometry: Geometry) -> float:
    """Return the cycles that one image is expected to take on one core."""
    return choose_plan(machine, geometry).cycles


def merge_groups(geometry: Geometry, weight: Array, lanes: int) -> tuple[Geometry, Array]:
    """Return an equal convolution whose groups fill whole vectors: neighbours merged, with zeros between them."""
    groups, together = geometry.groups, _merged(geometry, lanes)
    if together == 1:
        return geometry, weight
    inputs, outputs = geometry.channels // groups, geometry.filters // groups
    merged = np.zeros((geometry.filters, inputs * together, *geometry.kernel), weight.dtype)
    for group in range(groups):
        rows = slice(group * outputs, (group + 1) * outputs)
        first = group % together * inputs
        merged[rows, first : first + inputs] = weight[rows]
    return replace(geometry, groups=groups // together), merged


def _merged(geometry: Geometry, lanes: int) -> int:
    """Return how many groups have to be one for its channels and its filters to fill whole vectors."""
    groups = geometry.groups
    inputs, outputs = geometry.channels // groups, geometry.filters // groups
    together = math.lcm(lanes // math.gcd(lanes, inputs), lanes // math.gcd(lanes, outputs))
    return groups if groups % together else together


def fill_groups(geometry: Geometry, weight: Array, lanes: int) -> tuple[Geometry, Array]:
    """Return an equal convolution with groups of zeros for the channels that fill the last blocks of image and result.

    Seven groups of half a vector are eight then, of which two are merged into one.
    """
    groups = geometry.groups
    widths = geometry.channels // groups, geometry.filters // groups
    together = math.lcm(*(lanes // math.gcd(lanes, width) for width in widths))
    full = -(-groups // together) * together
    if groups == 1 or any(full * width != -(-groups * width // lanes) * lanes for width in widths):
        return geometry, weight
    filled = np.zeros((full * widths[1], *weight.shape[1:]), weight.dtype)
    filled[: geometry.filters] = weight
    return replace(geometry, channels=full * widths[0], filters=full * widths[1], groups=full), filled


def pad_groups(geometry: Geometry, weight: Array, lanes: int) -> tuple[Geometry, Array] | None:
    """Return an equal convolution of groups that are filled up to whole vectors, with zeros.

    None where it has no fewer products than that of merged groups, by COPYING at least.
    """
    groups = geometry.groups
    inputs, outputs = geometry.channels // groups, geometry.filters // groups
    full_in, full_out = (-(-extent // lanes) * lanes for extent in (inputs, outputs))
    if full_in * full_out * COPYING > inputs * outputs * _merged(geometry, lanes):
        return None
    padded = np.zeros((groups, full_out, full_in, *geometry.kernel), weight.dtype)
    padded[:, :outputs, :inputs] = weight.reshape(groups, outputs, inputs, *geometry.kernel)
    wide = replace(geometry, channels=groups * full_in, filters=groups * full_out)
    return wide, padded.reshape(groups * full_out, full_in, *geometry.kernel)


def move_groups(image: te.Tensor, groups: int, channels: int, to: int) -> te.Tensor:
    """Describe a blocked image whose groups, of ``channels`` that matter, start ``to`` channels apart; the rest is 0.

    Where ``to`` is ``channels``, the image's groups are those that `pad_groups` filled up.
    """
    batch, _, height, width, lanes = image.shape
    lanes = int(lanes)
    apart = -(-channels // lanes) * lanes if to == channels else channels

    def element(n: Any, block: Any, h: Any, w: Any, lane: Any) -> Any:
        group, channel = (block * lanes + lane) // to, (block * lanes + lane) % to
        at = group * apart + channel
        inside = tirx.all(channel < channels, group < groups)
        return tirx.if_then_else(inside, image[n, at // lanes, h, w, at % lanes], tirx.const(0, image.dtype))

    return te.compute((batch, -(-groups * to // lanes), height, width, lanes), element, name="groups")


def channels_at_once(channels: int, lanes: int) -> int:
    """Return how many channels of a block the inner loop of a sum takes: a block, or a part where the last has few.

    A sum of 24 channels in blocks of 16 goes over three parts of 8, not over two blocks, a quarter of which is zero.
    """
    return channels if channels < lanes else math.gcd(-(-channels // LEAST_AT_ONCE) * LEAST_AT_ONCE, lanes)


def pack_weight(weight: Array, lanes: int, unit: int | None = None, *, oc_blocks: int | None = None) -> Array:
    """Return (filters, channels, h, w) as (filters / lanes, channels / unit, h, w, unit of channels, lanes of filter).

    Without ``unit``: (filters / lanes, channels, h, w, lanes of filter). Missing ones are zero, and so are those that
    ``oc_blocks`` asks for beyond filters / lanes.
    """
    filters, channels, height, width = weight.shape
    oc_blocks = oc_blocks or -(-filters // lanes)
    inputs = -(-channels // unit) * unit if unit else channels
    full = np.zeros((oc_blocks * lanes, inputs, height, width), weight.dtype)
    full[:filters, :channels] = weight
    if unit is None:
        return full.reshape(oc_blocks, lanes, inputs, height, width).transpose(0, 2, 3, 4, 1)
    blocked = full.reshape(oc_blocks, lanes, inputs // unit, unit, height, width)
    return blocked.transpose(0, 2, 4, 5, 3, 1)


def convolve(image: te.Tensor, weight: te.Tensor, geometry: Geometry, plan: Plan | None) -> te.Tensor:
    """Describe the convolution of an image in either form with packed weights; no plan for an image of any size."""
    geometry = geometry.of(image)
    stored_oc_blocks, _, height, width = (int(extent) for extent in weight.shape[:4])
    lanes, batch = int(weight.shape[-1]), image.shape[0]
    oc_blocks, (out_h, out_w) = -(-geometry.filters // lanes), geometry.output
    oc_blocks_per_group = oc_blocks // geometry.groups
    padded = pad_image(image, geometry)
    (stride_h, stride_w), (dilation_h, dilation_w) = geometry.strides, geometry.dilation
    kernel_h, kernel_w = te.reduce_axis((0, height), "kernel_h"), te.reduce_axis((0, width), "kernel_w")
    part, *lane = channels = channel_axes(image, weight)
    blocks = -(-geometry.channels // geometry.groups // lanes)

    def first(oc_block: Any) -> Any:
        return oc_block // oc_blocks_per_group * blocks if geometry.groups > 1 else 0

    def element(n: Any, oc_block: Any, h: Any, w: Any, out: Any) -> Any:
        pixel = (h * stride_h + kernel_h * dilation_h, w * stride_w + kernel_w * dilation_w)
        weighted = weight(oc_block, part, kernel_h, kernel_w, *lane, out)
        term = product(padded, (n, first(oc_block), *pixel), channels, weighted)
        return te.sum(term, axis=[part, kernel_h, kernel_w, *lane])

    attributes: dict[str, Any] = {primitives.FAMILY: NAME}
    if plan is None and is_pointwise(geometry):

        def pixel(n: Any, oc_block: Any, h: Any, w: Any, out: Any) -> Any:
            weighted = weight(oc_block, part, 0, 0, *lane, out)
            return te.sum(product(image, (n, first(oc_block), h, w), channels, weighted), axis=channels)

        return te.compute(
            (batch, oc_blocks, out_h, out_w, lanes),
            pixel,
            name="convolve",
            attrs={**attributes, flatten_pixels.ANY_ORDER: flatten_pixels.HEIGHT},
        )
    if plan is not None:
        attributes |= {ROW_BLOCKS: plan.row_blocks, PIXELS: plan.tile.pixels, VECTORS: plan.tile.vectors}
    if plan is None or not is_pointwise(geometry):
        sums = te.compute((batch, stored_oc_blocks, out_h, out_w, lanes), element, name="sums", attrs=attributes)
        return te.compute((batch, oc_blocks, out_h, out_w, lanes), sums, name="convolve")
    size = out_h * out_w // plan.row_blocks
    # a row block is an axis: a tile that reached over its end would write what another thread does
    sums = te.compute(
        (batch, stored_oc_blocks, plan.row_blocks, size, lanes),
        lambda n, oc_block, row_block, p, out: element(
            n, oc_block, (row_block * size + p) // out_w, (row_block * size + p) % out_w, out
        ),
        name="sums",
        attrs={**attributes, FLAT: out_w},
    )

    def read(n: Any, oc_block: Any, h: Any, w: Any, out: Any) -> Any:
        p = h * out_w + w
        return sums[n, oc_block, 0, p, out] if plan.row_blocks == 1 else sums[n, oc_block, p // size, p % size, out]

    return te.compute((batch, oc_blocks, out_h, out_w, lanes), read, name="convolve")


def channel_axes(image: te.Tensor, weight: te.Tensor) -> list[te.IterVar]:
    """Return the loops over the channels of a sum: over parts of ``weight``, and over a part where it is in blocks."""
    part = te.reduce_axis((0, weight.shape[1]), "block")
    return [part, te.reduce_axis((0, weight.shape[4]), "channel")] if len(image.shape) == 5 else [part]


def block_and_lane(part: te.IterVar, unit: int, lanes: int) -> tuple[Any, Any]:
    """Return where a part of ``unit`` channels begins in an image in blocks."""
    return (part, 0) if unit == lanes else (part * unit // lanes, part * unit % lanes)


def product(image: te.Tensor, at: Sequence[Any], channels: Sequence[te.IterVar], weight: Any) -> Any:
    """Describe a term of a sum: a pixel of the image, ``at`` (n, first block, h, w), times its weight.

    ``channels`` are the loops over its channels. Pairs of weights are multiplied by two channels in bfloat16.
    """
    n, first, *pixel = at
    part, *lane = channels
    if not lane:
        return image(n, first + part, *pixel) * weight
    is_paired = weight.ty.dtype == "int32"
    unit = int(lane[0].dom.extent) * (2 if is_paired else 1)
    block, begin = block_and_lane(part, unit, int(image.shape[4]))
    if not is_paired:
        return image(n, first + block, *pixel, begin + lane[0]) * weight
    pair = (image(n, first + block, *pixel, begin + 2 * lane[0] + one) for one in (0, 1))
    return bfloat16_pairs.dot(bfloat16_pairs.joined(*pair), weight)


def schedule(sch: Schedule, machine: Machine) -> None:
    """Hold a tile of pixels by filters in registers along the reduction; tiles of a row block share its pixels."""
    sums = primitives.find(sch, NAME)
    annotations = dict(sch.get(sums).annotations)
    if ROW_BLOCKS not in annotations:
        is_pointwise = flatten_pixels.ANY_ORDER in annotations
        (dynamic_shape.schedule_pointwise if is_pointwise else dynamic_shape.schedule_direct)(sch, machine, sums)
        return
    row_blocks, pixels, vectors = (int(annotations[key]) for key in (ROW_BLOCKS, PIXELS, VECTORS))
    before, last = primitives.split_around(sch, sums)
    work = primitives.product(primitives.extent(sch, loop) for loop in sch.get_loops(sums))
    n, oc, row_block, along, out, *reduction = sch.get_loops(sums)
    reduction = primitives.taps_along_first(sch, along, reduction)
    between: list[LoopRV] = []
    if FLAT in annotations:
        _flatten_rows(sch, sums, last, out_w=int(annotations[FLAT]))
    else:
        row_block, along = primitives.rows_and_columns(sch, row_block, along)
        row_block, *between = sch.split(row_block, [row_blocks, None])
    lanes = primitives.static(sch, out)
    oc_out, oc_in = sch.split(oc, [None, vectors])
    along, pixel = sch.split(along, [None, pixels])
    sch.reorder(n, row_block, oc_out, *between, along, *reduction, pixel, oc_in, out)
    is_padded = any(primitives.family_of(sch, block) == primitives.PAD for block in before)
    shares_row_blocks = is_padded and row_blocks >= machine.cores
    shared = primitives.fuse(sch, [n, row_block] if shares_row_blocks else [n, row_block, oc_out])
    depth = len(between) + (3 if shares_row_blocks else 2)
    if not between:
        ask_for_next(sch, along, machine)
    sch.reverse_compute_at(last, along)
    primitives.parallel_if_worth(sch, shared, work // primitives.MULTIPLY_ADDS)
    primitives.pad_at(sch, before, shared if shares_row_blocks else None, machine)
    sch.vectorize(out)
    primitives.unroll_tile(sch, sums, last, reduction[0], (pixel, oc_in), below=depth, lanes=lanes)


def _flatten_rows(sch: Schedule, sums: SBlockRV, last: SBlockRV, *, out_w: int) -> None:
    """Give the block that writes the output the axes of ``sums``: (n, oc_block, row_block, pixel, out)."""
    row_blocks, size = (primitives.static(sch, loop) for loop in sch.get_loops(sums)[2:4])
    if row_blocks == 1:
        sch.transform_block_layout(last, lambda n, oc_block, h, w, out: (n, oc_block, h * out_w + w, out))
        return
    sch.transform_block_layout(
        last, lambda n, oc_block, h, w, out: (n, oc_block, (h * out_w + w) // size, (h * out_w + w) % size, out)
    )
    sch.transform_layout(sums, ("write", 0), lambda *index: index)  # changes nothing, but simplifies all indices
