"""Direct convolution over blocked channels (Georganas et al., 2018), of any kernel, stride, dilation and group.

An image with fewer channels than a vector has lanes (most often a network's input) is read in its plain form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax, te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from forge_pipeline.codegen.float32.conv import dynamic_shape
from forge_pipeline.codegen.float32.conv.geometry import Geometry, pad_image
from forge_pipeline.codegen.float32.conv.groups import fill_groups, merge_groups, move_groups, pad_groups
from forge_pipeline.codegen.float32.conv.plan import (
    Plan,
    channel_parts,
    choose_plan,
    in_pairs,
    is_pointwise,
    leaves_out,
    zeros_around,
)
from forge_pipeline.codegen.layout.builder import Array, Graph, Stored, Value
from forge_pipeline.codegen.tir import bfloat16_pairs, flatten_pixels, primitives
from forge_pipeline.codegen.tir.edges import last_tiles, skipped_taps
from forge_pipeline.codegen.tir.elementwise_blocks import pad_at
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.codegen.tir.prefetch.pixels import ask_for_pixels
from forge_pipeline.codegen.tir.prefetch.weights import ask_for_next

NAME = "direct"
ROW_BLOCKS, PIXELS, VECTORS = "forge.row_blocks", "forge.pixels", "forge.vectors"
"""Annotations of the block that sums: the plan."""

FLAT = "forge.flat"
"""The annotation of a block whose tiles cross rows: the pixels of a row."""

LEAST_AT_ONCE = 4
"""Channels that the inner loop of a sum takes at least; zeros fill up to a multiple of it."""

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
    total: relax.Expr | None = None
    for part in channel_parts(machine, geometry):
        count = part.stop - part.start
        own = replace(geometry, channels=count) if geometry.groups == 1 else geometry
        plan = choose_plan(machine, own) if geometry.is_static else None
        unit = None if is_nchw else channels_at_once(count // own.groups, machine.lanes)
        blocks = plan.oc_blocks if plan else dynamic_shape.stored_blocks(machine, own)
        packed = pack_weight(weight[:, part], machine.lanes, unit, oc_blocks=blocks)
        if is_paired:
            packed = bfloat16_pairs.paired(packed[..., ::2, :], packed[..., 1::2, :])
        read = image
        if count < geometry.channels:
            at = [extent // machine.lanes for extent in (part.start, part.stop + machine.lanes - 1)]
            read = graph.named(graph.emit(relax.op.strided_slice(image, axes=[1], begin=at[:1], end=at[1:])))
        name = "conv2d_planar" if is_nchw else "conv2d"
        kept = (stored or graph.constant)(packed)
        summed = graph.kernel(convolve, read, kept, name=name, geometry=own, plan=plan)
        if total is not None:
            summed = graph.emit(relax.op.add(graph.as_named(summed, total), total))
        total = summed if count == geometry.channels else graph.named(summed)
    assert total is not None  # noqa: S101 - there is a part
    return total


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
    skips = leaves_out(geometry, plan, image.dtype)
    around = zeros_around(geometry, plan) if skips else geometry.padding
    padded = pad_image(image, replace(geometry, padding=around))
    beside = [before - kept for before, kept in zip(geometry.padding[:2], around[:2], strict=True)]
    (stride_h, stride_w), (dilation_h, dilation_w) = geometry.strides, geometry.dilation
    kernel_h, kernel_w = te.reduce_axis((0, height), "kernel_h"), te.reduce_axis((0, width), "kernel_w")
    part, *lane = channels = channel_axes(image, weight)
    blocks = -(-geometry.channels // geometry.groups // lanes)

    def first(oc_block: Any) -> Any:
        return oc_block // oc_blocks_per_group * blocks if geometry.groups > 1 else 0

    def element(n: Any, oc_block: Any, h: Any, w: Any, out: Any) -> Any:
        pixel = (h * stride_h + kernel_h * dilation_h - beside[0], w * stride_w + kernel_w * dilation_w - beside[1])
        weighted = weight(oc_block, part, kernel_h, kernel_w, *lane, out)
        term = product(padded, (n, first(oc_block), *pixel), channels, weighted)
        return te.sum(term, axis=[part, kernel_h, kernel_w, *lane])

    attributes: dict[str, Any] = {primitives.FAMILY: NAME}
    if plan is None and is_pointwise(geometry):

        def pixel(n: Any, oc_block: Any, h: Any, w: Any, out: Any) -> Any:
            weighted = weight(oc_block, part, 0, 0, *lane, out)
            return te.sum(product(image, (n, first(oc_block), h, w), channels, weighted), axis=channels)

        attributes[flatten_pixels.ANY_ORDER] = flatten_pixels.HEIGHT
        if stored_oc_blocks == oc_blocks:
            return te.compute((batch, oc_blocks, out_h, out_w, lanes), pixel, name="convolve", attrs=attributes)
        sums = te.compute((batch, stored_oc_blocks, out_h, out_w, lanes), pixel, name="sums", attrs=attributes)
        return te.compute((batch, oc_blocks, out_h, out_w, lanes), sums, name="convolve")
    if plan is not None:
        attributes |= {ROW_BLOCKS: plan.row_blocks, PIXELS: plan.tile.pixels, VECTORS: plan.tile.vectors}
    if skips:
        attributes[skipped_taps.WINDOWS] = [
            *(geometry.padding[0], stride_h, dilation_h, around[0] + around[2]),
            *(geometry.padding[1], stride_w, dilation_w, around[1] + around[3]),
        ]
    if plan is None or not is_pointwise(geometry):
        sums = te.compute((batch, stored_oc_blocks, out_h, out_w, lanes), element, name="sums", attrs=attributes)
        return te.compute((batch, oc_blocks, out_h, out_w, lanes), sums, name="convolve")
    size, row_blocks = out_h * out_w // plan.row_blocks, plan.row_blocks
    copied = _in_row_blocks(image, row_blocks, out_w) if plan.copies else None

    def in_row_block(n: Any, oc_block: Any, row_block: Any, p: Any, out: Any) -> Any:
        if copied is None:
            return element(n, oc_block, (row_block * size + p) // out_w, (row_block * size + p) % out_w, out)
        weighted = weight(oc_block, part, 0, 0, *lane, out)
        at = (n * row_blocks + row_block, first(oc_block), 0, p)
        return te.sum(product(copied, at, channels, weighted), axis=channels)

    # a row block is an axis: a tile that reached over its end would write what another thread does
    shape = (batch, stored_oc_blocks, row_blocks, size, lanes)
    sums = te.compute(shape, in_row_block, name="sums", attrs={**attributes, FLAT: out_w})

    def read(n: Any, oc_block: Any, h: Any, w: Any, out: Any) -> Any:
        p = h * out_w + w
        return sums[n, oc_block, 0, p, out] if plan.row_blocks == 1 else sums[n, oc_block, p // size, p % size, out]

    return te.compute((batch, oc_blocks, out_h, out_w, lanes), read, name="convolve")


def _in_row_blocks(image: te.Tensor, row_blocks: int, width: int) -> te.Tensor:
    """Describe a copy of an image in blocks in which a row block's pixels lie together, of all channels."""
    batch, blocks, height, _, lanes = image.shape
    size = height * width // row_blocks

    def element(n: Any, block: Any, _: Any, p: Any, lane: Any) -> Any:
        at = n % row_blocks * size + p
        return image(n // row_blocks, block, at // width, at % width, lane)

    shape = (batch * row_blocks, blocks, 1, size, lanes)
    return te.compute(shape, element, name="row_block", attrs={primitives.FAMILY: primitives.PAD})


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
    _, *taps = reduction[:3]
    reduction = primitives.taps_along_first(sch, along, reduction)
    between: list[LoopRV] = []
    if FLAT in annotations:
        _flatten_rows(sch, sums, last, out_w=int(annotations[FLAT]))
    else:
        row_block, along = primitives.rows_and_columns(sch, row_block, along)
        row_block, *between = sch.split(row_block, [row_blocks, None])
    lanes = primitives.static(sch, out)
    image = machine.item * work // primitives.static(sch, oc) // lanes
    oc_out, oc_in = sch.split(oc, [None, vectors])
    along, pixel = sch.split(along, [None, pixels])
    sch.reorder(n, row_block, oc_out, *between, along, *reduction, pixel, oc_in, out)
    skipped_taps.mark(sch, sums, taps, pixels)
    is_padded = any(primitives.family_of(sch, block) == primitives.PAD for block in before)
    shares_row_blocks = is_padded and row_blocks >= machine.cores
    shared = primitives.fuse(sch, [n, row_block] if shares_row_blocks else [n, row_block, oc_out])
    depth = len(between) + (3 if shares_row_blocks else 2)
    last_tiles.mark(sch, along)
    if not between:
        ask_for_next(sch, along, machine)
    if FLAT in annotations and image > machine.l2:
        ask_for_pixels(sch, reduction[0], machine)
    sch.reverse_compute_at(last, along)
    primitives.parallel_if_worth(sch, shared, work // primitives.MULTIPLY_ADDS)
    pad_at(sch, before, shared if shares_row_blocks and skipped_taps.WINDOWS not in annotations else None, machine)
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
