"""Convolution with channels as the last axis (N, H, W, C), for those who ask for it: `compile.set_channel_layout=last`.

The blocked form of an image is then one block of all its channels, (N, 1, H, W, C), so that what works on blocks works
on these. Blocks of a vector are faster wherever channels are many: a tile's weights are then side by side.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te
from tvm.s_tir import Schedule

from forge_pipeline.codegen.float32.conv.geometry import Geometry, pad_image
from forge_pipeline.codegen.layout.builder import Array, Graph, Value
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.elementwise_blocks import schedule_elementwise
from forge_pipeline.codegen.tir.machine import Machine, choose_tile

NAME = "channels_last"
WIDTH = 64
"""Pixels of a row for which tiles are chosen where the width is symbolic."""


def emit(graph: Graph, source: Value, weight: Array, geometry: Geometry) -> relax.Expr | None:
    """Emit the convolution if channels are to be last; the result is one block of all channels."""
    if not graph.channels_last:
        return None
    packed = graph.constant(weight.transpose(2, 3, 1, 0))
    return graph.kernel(convolve, graph.blocked(source), packed, name="conv2d_last", geometry=geometry)


def convolve(image: te.Tensor, weight: te.Tensor, geometry: Geometry) -> te.Tensor:
    """Describe the convolution of (N, 1, H, W, C) with weights (h, w, channels / groups, filters)."""
    height, width, inputs, filters = (int(extent) for extent in weight.shape)
    geometry = geometry.of(image)
    padded = pad_image(image, geometry)
    (stride_h, stride_w), (dilation_h, dilation_w) = geometry.strides, geometry.dilation
    outputs = filters // geometry.groups
    kernel_h, kernel_w = te.reduce_axis((0, height), "kernel_h"), te.reduce_axis((0, width), "kernel_w")
    channel = te.reduce_axis((0, inputs), "channel")

    def element(n: Any, one: Any, h: Any, w: Any, f: Any) -> Any:
        first = f // outputs * inputs if geometry.groups > 1 else 0
        pixel = (h * stride_h + kernel_h * dilation_h, w * stride_w + kernel_w * dilation_w)
        return te.sum(
            padded(n, one, *pixel, first + channel) * weight(kernel_h, kernel_w, channel, f),
            axis=[kernel_h, kernel_w, channel],
        )

    shape = (image.shape[0], 1, *geometry.output, filters)
    return te.compute(shape, element, name="convolve", attrs={primitives.FAMILY: NAME})


def schedule(sch: Schedule, machine: Machine) -> None:
    """Hold a tile of pixels by filters in registers along the reduction."""
    anchor = primitives.find(sch, NAME)
    before, last = primitives.split_around(sch, anchor)
    for block in before:
        schedule_elementwise(sch, block, machine)
    n, one, h, w, f, *reduction = sch.get_loops(anchor)
    filters, width, height = primitives.static(sch, f), primitives.extent(sch, w), primitives.extent(sch, h)
    steps = primitives.product(primitives.static(sch, loop) for loop in reduction)
    lanes = math.gcd(filters, machine.lanes)
    tile = choose_tile(machine, pixels=width or WIDTH, vectors=filters // lanes, steps=steps)
    f_out, f_in, lane = sch.split(f, [None, tile.vectors, lanes])
    w_out, w_in = sch.split(w, [None, tile.pixels])
    sch.reorder(n, one, f_out, h, w_out, *reduction, w_in, f_in, lane)
    shared = primitives.fuse(sch, [n, one, f_out, h])
    sch.reverse_compute_at(last, w_out)
    primitives.parallel_if_worth(sch, shared, filters * (width or WIDTH) * (height or WIDTH) * steps)
    if lanes > 1:
        sch.vectorize(lane)
    primitives.unroll_tile(sch, anchor, last, reduction[0], (w_in, f_in), below=2, lanes=lanes)
