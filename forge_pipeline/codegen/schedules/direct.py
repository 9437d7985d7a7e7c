"""Direct convolution over blocked channels (Georganas et al., 2018), of any kernel, stride, dilation and group.

An image with fewer channels than a vector has lanes (most often a network's input) is read in its plain form.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from forge_pipeline.codegen.graph import Array, Graph, Value
from forge_pipeline.codegen.machine import Machine, choose_tile, divisors, steps_per_part
from forge_pipeline.codegen.schedules import moves, unsized
from forge_pipeline.codegen.schedules.geometry import Geometry, surround

if TYPE_CHECKING:
    from tvm import relax, te
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import SBlockRV

NAME = "direct"
PART = "convolve_part"
FEWEST_TILES = 4
"""Tiles of pixels below which weights are read too seldom to be worth keeping in the first cache."""

RESIDENT = 1 << 20
"""Bytes of weights above which integer kernels put the loop over filters outside, so that weights are read once."""

WORTH_EVEN = 0.8
"""Expected part of the peak below which tiles without a tail are not worth what parts save."""


def emit(graph: Graph, source: Value, weight: Array, geometry: Geometry) -> relax.Expr:
    """Emit the convolution; the result is blocked."""
    lanes = graph.machine.lanes
    geometry, weight = merge_groups(geometry, weight, lanes)
    planar = geometry.groups == 1 and geometry.channels < lanes and not graph.is_blocked(source)
    image = graph.plain(source) if planar else graph.blocked(source)
    packed = pack_weight(weight, lanes, block_channels=not planar)
    parts = 1 if planar or not geometry.is_sized else count_parts(graph.machine, geometry)
    name = "conv2d_planar" if planar else "conv2d"
    return graph.kernel(convolve, image, graph.constant(packed), name=name, geometry=geometry, parts=parts)


def count_parts(machine: Machine, geometry: Geometry) -> int:
    """Return the number of parts to cut the channels into, for weights to be read again from the first cache."""
    rows, blocks = -(-geometry.filters // machine.lanes), -(-geometry.channels // geometry.groups // machine.lanes)
    taps = geometry.kernel[0] * geometry.kernel[1] * machine.lanes
    tall, wide = geometry.output
    tile = choose_tile(machine, pixels=wide, vectors=rows // geometry.groups or 1, steps=blocks * taps, even=True)
    if tall * wide // tile.pixels < FEWEST_TILES or tile.efficiency < WORTH_EVEN:
        return 1
    width = tile.vectors * machine.lanes
    lengths = [n for n in divisors(blocks, blocks) if steps_per_part(machine, steps=n * taps, width=width) == n * taps]
    fitting = [n for n in lengths if 4 * n * taps * width <= machine.l1 // 2]
    return blocks // fitting[-1] if fitting else 1


def cycles(machine: Machine, geometry: Geometry) -> float:
    """Return the cycles that one image is expected to take on one core."""
    rows = -(-geometry.filters // machine.lanes)
    tall, wide = geometry.output
    tile = choose_tile(machine, pixels=wide, vectors=rows, steps=geometry.steps)
    reading = machine.streaming_cycles(4 * geometry.steps * rows * machine.lanes)
    return machine.fma_cycles(tall * wide * rows * geometry.steps) / tile.efficiency + reading


def read_weights_once(machine: Machine, *, weight_bytes: int, image_bytes: int) -> bool:
    """Return whether the loop over filters goes outside: the image is then read again for each tile of filters.

    So it is where the image stays in the second cache; or where neither does, since weights are mostly the larger.
    """
    room = machine.l2 // 2
    return image_bytes <= room or weight_bytes > room


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


def pack_weight(weight: Array, lanes: int, *, block_channels: bool) -> Array:
    """Return (filters, channels, h, w) as (filters / lanes, channels / lanes, h, w, lanes of channel, of filter).

    Without ``block_channels``: (filters / lanes, channels, h, w, lanes of filter). Missing ones are zero.
    """
    filters, channels, height, width = weight.shape
    rows = -(-filters // lanes)
    columns = -(-channels // lanes) * lanes if block_channels else channels
    full = np.zeros((rows * lanes, columns, height, width), np.float32)
    full[:filters, :channels] = weight
    if not block_channels:
        return full.reshape(rows, lanes, columns, height, width).transpose(0, 2, 3, 4, 1)
    blocked = full.reshape(rows, lanes, columns // lanes, lanes, height, width)
    return blocked.transpose(0, 2, 4, 5, 3, 1)


def convolve(image: te.Tensor, weight: te.Tensor, geometry: Geometry, parts: int) -> te.Tensor:
    """Describe the convolution of an image in either form with packed weights; the sum over channels is in parts."""
    from tvm import te

    rows, blocks, height, width = (int(extent) for extent in weight.shape[:4])
    lanes = int(weight.shape[-1])
    rows_per_group = rows // geometry.groups
    geometry = geometry.of(image)
    padded = surround(image, geometry)
    (down, right), (dilate_down, dilate_right) = geometry.strides, geometry.dilation
    length = blocks // parts
    block = te.reduce_axis((0, length), "block")
    kernel_h, kernel_w = te.reduce_axis((0, height), "kernel_h"), te.reduce_axis((0, width), "kernel_w")
    axes = [block, kernel_h, kernel_w]
    lane: tuple[Any, ...] = ()
    if len(image.shape) == 5:
        lane = (te.reduce_axis((0, lanes), "channel"),)
        axes += lane

    def element(n: Any, row: Any, h: Any, w: Any, out: Any, part: Any) -> Any:
        first = row // rows_per_group * blocks if geometry.groups > 1 else 0
        pixel = (h * down + kernel_h * dilate_down, w * right + kernel_w * dilate_right)
        own = part * length + block
        return te.sum(
            padded(n, first + own, *pixel, *lane) * weight(row, own, kernel_h, kernel_w, *lane, out), axis=axes
        )

    shape = (image.shape[0], rows, *geometry.output, lanes)
    if parts == 1:
        return te.compute(
            shape, lambda n, row, h, w, out: element(n, row, h, w, out, 0), name="convolve", attrs={moves.FAMILY: NAME}
        )
    partial = te.compute((*shape, parts), element, name=PART)
    part = te.reduce_axis((0, parts), "part")
    return te.compute(
        shape, lambda *index: te.sum(partial(*index, part), axis=[part]), name="convolve", attrs={moves.FAMILY: NAME}
    )


def schedule(sch: Schedule, machine: Machine) -> None:
    """Hold a tile of pixels by filters in registers along the reduction, or along each part of it."""
    anchor = moves.find(sch, NAME)
    if PART in {sch.get(block).name_hint for block in moves.blocks(sch)}:
        _schedule_parts(sch, machine, anchor)
        return
    if None in moves.extents(sch, anchor)[2:]:
        unsized.schedule_direct(sch, machine, anchor)
        return
    before, last = moves.split_around(sch, anchor)
    for block in before:
        moves.spread(sch, block, machine)
    n, row, h, w, out, *reduction = sch.get_loops(anchor)
    rows, height, width, lanes = (moves.static(sch, loop) for loop in (row, h, w, out))
    steps = moves.product(moves.static(sch, loop) for loop in reduction)
    tile = choose_tile(machine, pixels=width, vectors=rows, steps=steps)
    weight_bytes = 4 * lanes * rows * steps
    image_bytes = 4 * moves.static(sch, reduction[0]) * height * width * lanes
    row_out, row_in = sch.split(row, [None, tile.vectors])
    w_out, w_in = sch.split(w, [None, tile.pixels])
    filters_outside = read_weights_once(machine, weight_bytes=weight_bytes, image_bytes=image_bytes)
    outer = [n, row_out, h, w_out] if filters_outside else [n, h, w_out, row_out]
    sch.reorder(*outer, *reduction, w_in, row_in, out)
    work = rows * lanes * height * width * steps
    if tile.tail:  # the partitioned loop stays serial, inside the parallel one
        threads = [loop for loop in outer if loop is not w_out]
        sch.reorder(*threads, w_out)
        shared, at, depth = moves.fuse(sch, threads), w_out, 2
    else:
        shared = at = moves.fuse(sch, outer)
        depth = 1
    sch.reverse_compute_at(last, at)
    moves.parallel_if_worth(sch, shared, work)
    sch.vectorize(out)
    sch.unroll(w_in)
    sch.unroll(row_in)
    moves.vectorize_and_unroll(sch, last, below=depth, lanes=lanes)
    moves.vectorize_and_unroll(sch, sch.decompose_reduction(anchor, reduction[0]), below=depth, lanes=lanes)


def _schedule_parts(sch: Schedule, machine: Machine, anchor: SBlockRV) -> None:
    """Keep the sums of a band of rows in the first cache, and add a part of the channels to all of them at a time."""
    partial = sch.get_sblock(PART)
    before, last = moves.split_around(sch, anchor, scope="global")
    for block in before:
        if sch.get(block).name_hint != PART:
            moves.spread(sch, block, machine)
    n, row, h, w, out, part = sch.get_loops(anchor)
    rows, height, width, lanes = (moves.static(sch, loop) for loop in (row, h, w, out))
    steps = moves.product(moves.static(sch, loop) for loop in sch.get_loops(partial)[6:])
    parts = moves.static(sch, part)
    tile = choose_tile(machine, pixels=width, vectors=rows, steps=steps * parts, even=True)
    room = max(1, machine.l1 // 2 // (4 * lanes * tile.vectors * width))
    band = max(
        [high for high in divisors(height, room) if height // high % machine.cores == 0] or divisors(height, room)
    )
    row_out, row_in = sch.split(row, [None, tile.vectors])
    h_out, h_in = sch.split(h, [None, band])
    w_out, w_in = sch.split(w, [None, tile.pixels])
    image_bytes = 4 * moves.static(sch, sch.get_loops(partial)[6]) * parts * height * width * lanes
    once = read_weights_once(machine, weight_bytes=4 * rows * lanes * steps * parts, image_bytes=image_bytes)
    outer = [n, row_out, h_out] if once else [n, h_out, row_out]
    sch.reorder(*outer, part, h_in, w_out, w_in, row_in, out)
    shared = moves.fuse(sch, outer)
    sch.reverse_compute_at(last, shared)
    sch.compute_at(partial, w_out, preserve_unit_loops=True)
    sch.set_scope(partial, 0, "local")
    _, row_part, _, w_part, out_part, _, *reduction = sch.get_loops(partial)[4:]
    sch.reorder(*reduction, w_part, row_part, out_part)
    moves.parallel_if_worth(sch, shared, rows * lanes * height * width * steps * parts)
    sch.vectorize(out_part)
    sch.unroll(w_part)
    sch.unroll(row_part)
    moves.vectorize_and_unroll(sch, last, below=3, lanes=lanes)
    moves.vectorize_and_unroll(sch, anchor, below=4, lanes=lanes)
    moves.vectorize_and_unroll(sch, sch.decompose_reduction(partial, reduction[0]), below=4, lanes=lanes)
    moves.vectorize_and_unroll(sch, sch.decompose_reduction(anchor, part), below=3, lanes=lanes)
