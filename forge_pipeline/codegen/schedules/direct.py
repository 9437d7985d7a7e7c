"""Direct convolution over blocked channels (Georganas et al., 2018), of any kernel, stride, dilation and group.

An image with fewer channels than a vector has lanes (most often a network's input) is read in its plain form.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from forge_pipeline.codegen.graph import Array, Graph, Value
from forge_pipeline.codegen.machine import Machine, choose_tile
from forge_pipeline.codegen.schedules import moves
from forge_pipeline.codegen.schedules.geometry import Geometry, surround

if TYPE_CHECKING:
    from tvm import relax, te
    from tvm.s_tir import Schedule

NAME = "direct"
RESIDENT = 1 << 20
"""Bytes of weights above which the loop over filters goes outside, so that weights are read once."""


def emit(graph: Graph, source: Value, weight: Array, geometry: Geometry) -> relax.Expr:
    """Emit the convolution; the result is blocked."""
    lanes = graph.machine.lanes
    geometry, weight = merge_groups(geometry, weight, lanes)
    planar = geometry.groups == 1 and geometry.channels < lanes and not graph.is_blocked(source)
    image = graph.plain(source) if planar else graph.blocked(source)
    packed = graph.constant(pack_weight(weight, lanes, block_channels=not planar))
    return graph.kernel(convolve, image, packed, name="conv2d_planar" if planar else "conv2d", geometry=geometry)


def cycles(machine: Machine, geometry: Geometry) -> float:
    """Return the cycles that one image is expected to take on one core."""
    rows = -(-geometry.filters // machine.lanes)
    tall, wide = geometry.output
    tile = choose_tile(machine, pixels=wide, vectors=rows, steps=geometry.steps)
    reading = machine.streaming_cycles(4 * geometry.steps * rows * machine.lanes)
    return machine.fma_cycles(tall * wide * rows * geometry.steps) / tile.efficiency + reading


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


def convolve(image: te.Tensor, weight: te.Tensor, geometry: Geometry) -> te.Tensor:
    """Describe the convolution of an image in either form with packed weights."""
    from tvm import te

    rows, blocks, height, width = (int(extent) for extent in weight.shape[:4])
    lanes = int(weight.shape[-1])
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
        factor = weight(row, block, kernel_h, kernel_w, *lane, out)
        return te.sum(padded(n, first + block, *pixel, *lane) * factor, axis=axes)

    shape = (image.shape[0], rows, *geometry.output, lanes)
    return te.compute(shape, element, name="convolve", attrs={moves.FAMILY: NAME})


def schedule(sch: Schedule, machine: Machine) -> None:
    """Hold a tile of pixels by filters in registers along the whole reduction; then what follows, then store."""
    anchor = moves.find(sch, NAME)
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
    filters_outside = weight_bytes > min(image_bytes, RESIDENT)
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
