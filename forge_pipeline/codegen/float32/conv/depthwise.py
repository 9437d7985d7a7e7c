"""Depthwise convolution: every lane its own channel, a tile of pixels at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax, te
from tvm.s_tir import Schedule

from forge_pipeline.codegen.float32.conv import dynamic_shape
from forge_pipeline.codegen.float32.conv.geometry import Geometry, pad_image
from forge_pipeline.codegen.layout.builder import Array, Graph, Stored, Value
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.edges import edge_tiles
from forge_pipeline.codegen.tir.edges.edge_tiles import Window
from forge_pipeline.codegen.tir.machine import Machine, divisors

NAME = "depthwise"
WIDEST = 14
"""Pixels in a tile at most: each reuses the row for the kernel's width, and holds one accumulator."""

SHARES = 8
"""Pieces of work for each core at least: where there are fewer blocks of channels, rows are shared out."""

WINDOWS = "forge.windows"
"""The annotation of a block whose image has padding: size, padding before, strides, kernel, dilation; two of each."""

OPEN = 0
"""The size of an image that is known only when it is there."""

TAPS_PER_RESULT = 4
"""Multiply-adds that take as long as storing one result: here, they wait for memory more than a convolution's."""


def emit(
    graph: Graph, source: Value, weight: Array, geometry: Geometry, stored: Stored | None = None
) -> relax.Expr | None:
    """Emit the convolution if each filter reads one channel; the result is blocked.

    Where several filters read the same channel, the image is given as many copies of it first.
    """
    if geometry.groups != geometry.channels or geometry.channels == 1:
        return None
    image, lanes = graph.blocked(source), graph.machine.lanes
    if geometry.filters != geometry.channels:
        times = geometry.filters // geometry.channels
        image = graph.kernel(repeat_channels, image, name="repeat", times=times, channels=geometry.filters)
        geometry = replace(geometry, channels=geometry.filters, groups=geometry.filters)
    blocks = -(-geometry.channels // lanes)
    full = np.zeros((blocks * lanes, *geometry.kernel), weight.dtype)
    full[: geometry.channels] = weight[:, 0]
    packed = (stored or graph.constant)(full.reshape(blocks, lanes, *geometry.kernel).transpose(0, 2, 3, 1))
    return graph.kernel(convolve, image, packed, name="depthwise", geometry=geometry)


def repeat_channels(image: te.Tensor, times: int, channels: int) -> te.Tensor:
    """Describe a blocked image that has each channel ``times`` times, one after the other: ``channels`` in all."""
    batch, _, height, width, lanes = image.shape
    lanes = int(lanes)

    def element(n: Any, block: Any, h: Any, w: Any, lane: Any) -> Any:
        channel = (block * lanes + lane) // times
        return image[n, channel // lanes, h, w, channel % lanes]

    return te.compute((batch, -(-channels // lanes), height, width, lanes), element, name="repeat")


def convolve(image: te.Tensor, weight: te.Tensor, geometry: Geometry) -> te.Tensor:
    """Describe the convolution of a blocked image with weights (blocks, h, w, lanes)."""
    blocks, height, width, lanes = (int(extent) for extent in weight.shape)
    geometry = geometry.of(image)
    padded = pad_image(image, geometry, by_rows=geometry.is_static)
    (stride_h, stride_w), (dilation_h, dilation_w) = geometry.strides, geometry.dilation
    kernel_h, kernel_w = te.reduce_axis((0, height), "kernel_h"), te.reduce_axis((0, width), "kernel_w")

    def element(n: Any, block: Any, h: Any, w: Any, lane: Any) -> Any:
        pixel = (h * stride_h + kernel_h * dilation_h, w * stride_w + kernel_w * dilation_w)
        return te.sum(
            padded(n, block, *pixel, lane) * weight(block, kernel_h, kernel_w, lane), axis=[kernel_h, kernel_w]
        )

    shape = (image.shape[0], blocks, *geometry.output, lanes)
    attributes: dict[str, Any] = {primitives.FAMILY: NAME}
    if any(geometry.padding):
        before, strides, kernel = geometry.padding[:2], geometry.strides, geometry.kernel
        size = (extent if isinstance(extent, int) else OPEN for extent in geometry.size)
        attributes[WINDOWS] = [*size, *before, *strides, *kernel, *geometry.dilation]
    return te.compute(shape, element, name="depthwise", attrs=attributes)


def schedule(sch: Schedule, machine: Machine) -> None:
    """Compute a tile of pixels after the other; those at the edges are code of their own."""
    anchor = primitives.find(sch, NAME)
    annotations = sch.get(anchor).annotations
    windows = windows_of(annotations) if WINDOWS in annotations else None
    if None in primitives.extents(sch, anchor)[2:]:
        dynamic_shape.schedule_depthwise(sch, machine, anchor, windows)
        return
    before, last = primitives.split_around(sch, anchor)
    n, block, h, w, lane, kernel_h, kernel_w = sch.get_loops(anchor)
    axes = (2, 3, 5)
    if primitives.static(sch, w) == 1:  # its height is its one row
        h, w, kernel_h, kernel_w, axes = w, h, kernel_w, kernel_h, (3, 2, 6)
    height, width, lanes = (primitives.static(sch, loop) for loop in (h, w, lane))
    taps = primitives.static(sch, kernel_h) * primitives.static(sch, kernel_w)
    pixels = tile_width(machine, width)
    shares = -(-SHARES * machine.cores // primitives.static(sch, block))
    row_block = max([rows for rows in divisors(height, height) if height // rows >= shares] or [1])
    parts = machine.cores if height // row_block % machine.cores == 0 else 1
    part, h_out, h_in = sch.split(h, [parts, None, row_block])
    w_out, w_in = sch.split(w, [None, pixels])
    sch.reorder(n, part, block, h_out, h_in, w_out, kernel_h, kernel_w, w_in, lane)
    results = primitives.product(primitives.extent(sch, loop) for loop in (part, block, h_out, h_in, w_out, w_in, lane))
    shared = primitives.fuse(sch, [n, part, block, h_out])  # a core has the rows that it has of what comes before
    sch.reverse_compute_at(last, w_out)
    primitives.parallel_if_worth(sch, shared, results * taps // TAPS_PER_RESULT)
    for producer in before:
        if primitives.family_of(sch, producer) == primitives.PAD:
            sch.compute_inline(producer)
        else:
            sch.compute_at(producer, shared)
            sch.vectorize(sch.get_loops(producer)[-1])
    sch.vectorize(lane)
    unrolls = taps * pixels <= dynamic_shape.MOST_CODE
    if windows is not None:
        edge_tiles.mark(sch, anchor, h_in, w_out, axes=axes, rows=windows[axes[0] - 2], columns=windows[axes[1] - 2],
                        tile=pixels, unrolls=unrolls)  # fmt: skip
    taps_in = (kernel_h, kernel_w) if unrolls else (kernel_w,)
    primitives.unroll_tile(sch, anchor, last, kernel_h, (w_in, *taps_in), below=3, lanes=lanes)


def tile_width(machine: Machine, width: int) -> int:
    """Return the pixels of a tile: of as few tiles as a row takes, the narrowest."""
    return -(-width // -(-width // min(WIDEST, machine.registers // 2)))


def windows_of(annotations: Any) -> tuple[Window, Window]:
    """Return what results of a block with WINDOWS read along the image's height, and along its width."""
    size, before, stride, taps, dilation = (
        [int(item) for item in annotations[WINDOWS][index : index + 2]] for index in range(0, 10, 2)
    )
    height, width = (
        Window(size=size[axis], before=before[axis], stride=stride[axis], taps=taps[axis], dilation=dilation[axis])
        for axis in (0, 1)
    )
    return height, width
