"""Depthwise convolution of bytes: every lane its own channel, two or four taps of a row to a step.

Four neighbouring pixels of a block are one vector; transposed, each lane holds four taps of its channel. Where bytes
are widened, a copy of the image has pairs of neighbouring pixels side by side. Where the
kernel is narrower than that, the next pixels to the right read the same vector with their weights moved along.
Columns that a dilated kernel reads are brought side by side first, by a copy of the image that has those with the same
remainder together.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.float32.conv.direct import PIXELS
from forge_pipeline.codegen.float32.conv.dynamic_shape import ROW_BLOCK, WIDTHS
from forge_pipeline.codegen.float32.conv.geometry import Geometry, pad_image, simplify
from forge_pipeline.codegen.int8.conv.words import joined
from forge_pipeline.codegen.int8.isa.dot_product import (
    TRANSPOSED,
    WEIGHTS,
    DotProduct,
    products,
    tensorize,
    unpack_int32,
)
from forge_pipeline.codegen.int8.isa.micro_kernel import PIXELS as NEON_PIXELS
from forge_pipeline.codegen.int8.isa.sdot import MICRO_KERNEL
from forge_pipeline.codegen.int8.isa.table import dot_product, instruction_set
from forge_pipeline.codegen.int8.neon import narrow_store as neon_narrow_store
from forge_pipeline.codegen.int8.requantize import Epilogue, to_float_if_needed
from forge_pipeline.codegen.int8.x86 import narrow_store as x86_narrow_store
from forge_pipeline.codegen.layout.builder import Array, Graph, Value
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.edges.tail_tiles import MARGIN
from forge_pipeline.codegen.tir.machine import Machine, divisors

NAME = "int8_depthwise"
WIDEST = 14
"""Pixels in a tile at most."""


def takes(geometry: Geometry) -> bool:
    """Return whether each filter reads one channel of its own."""
    return geometry.groups == geometry.channels == geometry.filters and geometry.channels > 1


def emit(
    graph: Graph, source: Value, zero: int, weight: Array, geometry: Geometry, epilogue: Epilogue
) -> relax.Expr | None:
    """Emit the convolution if each filter reads one channel of its own; the result is blocked.

    Where ``weight`` has more rows than the kernel, they are parts of it, one below the other.
    """
    if not takes(geometry):
        return None
    lanes, dot = graph.machine.lanes, dot_product(graph.machine)
    blocks = -(-geometry.channels // lanes)
    stride, dilation = geometry.strides[1], geometry.dilation[1]
    packed = pack_weight(weight[:, 0], lanes, stride, dot.k_inner, shares=dilation == 1)
    share = packed.shape[2] if dilation == 1 else dilation // math.gcd(stride, dilation)  # pixels until reads repeat
    candidates = [share * count for count in range(1, max(1, min(WIDEST, graph.machine.registers // 2) // share) + 1)]
    narrows = instruction_set(graph.machine).micro_kernels and epilogue.affine is not None and geometry.is_static
    if narrows:
        candidates = [count for count in (4, 8, 12) if count % share == 0] or candidates
    widths = (geometry.output[1],) if geometry.is_static else WIDTHS
    pixels = min(
        candidates, key=lambda count: (sum(-(-width // count) * (count + 1) / width for width in widths), -count)
    )

    return graph.kernel(
        convolve, graph.blocked(source), graph.constant(packed), *epilogue.constants(graph, (blocks, lanes)),
        name="depthwise_u8", geometry=geometry, zero=zero, epilogue=epilogue, pixels=pixels, dot=dot,
        narrows=bool(narrows) and pixels % NEON_PIXELS == 0,
    )  # fmt: skip


def pack_weight(weight: Array, lanes: int, stride: int, k_inner: int, *, shares: bool = True) -> Array:
    """Return (channels, h, w) as (blocks, h, pixels that share a vector, w / k_inner, lanes, taps of a step)."""
    channels, height, width = weight.shape
    blocks, k_outers = -(-channels // lanes), -(-width // k_inner)
    share = (k_outers * k_inner - width) // stride + 1 if shares else 1
    full = np.zeros((blocks * lanes, height, share, k_outers * k_inner), weight.dtype)
    for pixel in range(share):
        full[:channels, :, pixel, pixel * stride : pixel * stride + width] = weight
    split = full.reshape(blocks, lanes, height, share, k_outers, k_inner)
    return np.ascontiguousarray(split.transpose(0, 2, 3, 4, 1, 5))


def convolve(
    image: te.Tensor, weight: te.Tensor, bias: te.Tensor, factor: te.Tensor, *float_bias: te.Tensor,
    geometry: Geometry, zero: int, epilogue: Epilogue, pixels: int, dot: DotProduct, narrows: bool,
) -> te.Tensor:  # fmt: skip
    """Describe the convolution of a blocked image, and what is done to its sums.

    ``narrows``: four pixels at a time, as NEON does.
    """
    blocks, height, share, k_outers, lanes, taps = (int(extent) for extent in weight.shape)
    geometry = geometry.of(image)
    out_w = geometry.output[1]
    if geometry.is_static:
        out_w = -(-out_w // pixels) * pixels
        peel = dot.is_single and set(geometry.dilation) == {1}
        padded = pad_image(image, _pad_right(geometry, out_w - share, k_outers * taps), zero, peel=peel)
    else:
        padded = pad_image(image, _with_margin(geometry, pixels - share, k_outers * taps), zero)
    (stride_h, stride_w), (dilation_h, dilation) = geometry.strides, geometry.dilation
    reach = (out_w + (0 if geometry.is_static else pixels - 1) - share) * stride_w // dilation + k_outers * taps
    if dilation > 1:
        padded = by_remainder(padded, dilation, reach)
    kernel_h, k_outer = te.reduce_axis((0, height), "kernel_h"), te.reduce_axis((0, k_outers), "k_outer")
    k_inner = te.reduce_axis((tirx.const(0, "int64"), tirx.const(taps, "int64")), "k_inner")
    apart = (
        taps if dilation == 1 and share * stride_w % taps == 0 else 1
    )  # pixels between the groups of taps that are read
    if dot.widens:
        padded = side_by_side(padded, taps, apart)

    def sums(n: Any, block: Any, h: Any, w: Any, lane: Any) -> Any:
        group, pixel = (w // share, w % share) if share > 1 else (w, 0)
        row = kernel_h if height == geometry.kernel[0] else kernel_h % geometry.kernel[0]
        y, first = h * stride_h + row * dilation_h, group * (share * stride_w) + k_outer * taps
        if dilation > 1:
            first = w * stride_w % dilation * reach + w * stride_w // dilation + k_outer * taps
        if dot.widens:
            column = group * (share * stride_w // apart) + k_outer * (taps // apart) if dilation == 1 else first
            value = unpack_int32(padded(n, block, y, column, lane), k_inner, dot)
        else:
            value = padded(n, block, y, first + k_inner, lane)
        return te.sum(
            products(value, weight(block, kernel_h, pixel, k_outer, lane, k_inner)), axis=[kernel_h, k_outer, k_inner]
        )

    shape = (image.shape[0], blocks, geometry.output[0], out_w, lanes)
    total = te.compute(shape, sums, name="sums", attrs={primitives.FAMILY: NAME, PIXELS: pixels, WEIGHTS: weight.dtype})

    def constants(_n: Any, block: Any, _h: Any, _w: Any, lane: Any) -> Any:
        return (term(block, lane) for term in (bias, factor, *float_bias))

    output = (image.shape[0], blocks, *geometry.output, lanes)
    if not narrows:
        return x86_narrow_store.requantize(output, epilogue, total, constants)

    def narrowed(n: Any, block: Any, h: Any, t: Any, pixel: Any, lane: Any) -> Any:
        at = (n, block, h, t * NEON_PIXELS + pixel, lane)
        return epilogue.result(total(*at), *constants(*at))

    tiles = (image.shape[0], blocks, geometry.output[0], out_w // NEON_PIXELS)
    narrowed_tiles = neon_narrow_store.narrow(narrowed, tiles, MICRO_KERNEL, epilogue)
    return te.compute(
        output,
        lambda n, block, h, w, lane: narrowed_tiles(n, block, h, w // NEON_PIXELS, w % NEON_PIXELS, lane),
        name=f"finish_{to_float_if_needed(epilogue.affine)}",
    )


def by_remainder(image: te.Tensor, dilation: int, reach: int) -> te.Tensor:
    """Describe a copy of an image: its columns 0, dilation, ..., ``reach`` of them, then 1, 1 + dilation, and so on."""
    batch, blocks, height, _, lanes = image.shape
    return te.compute(
        (batch, blocks, height, dilation * reach, lanes),
        lambda n, c, h, w, lane: image(n, c, h, w % reach * dilation + w // reach, lane),
        name="by_remainder",
    )


def side_by_side(image: te.Tensor, taps: int, apart: int) -> te.Tensor:
    """Describe a copy of a blocked image in int32: each lane's ``taps`` from every ``apart``-th pixel on."""
    batch, blocks, height, width, lanes = image.shape

    def packed(n: Any, c: Any, h: Any, w: Any, lane: Any) -> Any:
        return joined([image(n, c, h, w * apart + tap, lane) for tap in range(taps)], taps)

    columns = simplify((width - taps + apart) // apart)
    return te.compute((batch, blocks, height, columns, lanes), packed, name="side_by_side")


def _pad_right(geometry: Geometry, last: int, taps: int) -> Geometry:
    """Return a convolution padded so far to the right that ``taps`` columns can be read from pixel ``last`` on."""
    top, left, bottom, right = geometry.padding
    reach = last * geometry.strides[1] + taps
    if geometry.dilation[1] > 1:
        reach = (last * geometry.strides[1] // geometry.dilation[1] + taps) * geometry.dilation[1]
    return replace(geometry, padding=(top, left, bottom, max(right, reach - left - geometry.size[1])))


def _with_margin(geometry: Geometry, beyond: int, taps: int) -> Geometry:
    """Return the same where the width is symbolic, and tiles begin up to ``beyond`` pixels behind the last result."""
    top, left, bottom, right = geometry.padding
    more = beyond * geometry.strides[1] + (taps - geometry.kernel[1] + 1) * geometry.dilation[1] - 1
    return replace(geometry, padding=(top, left, bottom, right + more))


def schedule(sch: Schedule, machine: Machine) -> None:
    """Compute a block of rows at a time, small enough that its padded copy stays in the first cache."""
    anchor = primitives.find(sch, NAME)
    annotations = sch.get(anchor).annotations
    pixels, weights = int(annotations[PIXELS]), str(annotations[WEIGHTS])
    narrow = neon_narrow_store.find(sch)
    before, last = primitives.split_around(sch, anchor if narrow is None else narrow)
    n, block, h, w, lane, kernel_h, k_outer, k_inner = sch.get_loops(anchor)
    lanes, height, width = primitives.static(sch, lane), primitives.extent(sch, h), primitives.extent(sch, w)
    is_sized, row_block = True, 1
    if height is None or width is None:
        is_sized, row_block = False, ROW_BLOCK
    else:
        row_block = max([rows for rows in divisors(height, 32) if rows * width * lanes <= machine.l1 // 2] or [1])
    h_out, h_in = sch.split(h, [None, row_block])
    w_out, w_in = sch.split(w, [None, pixels])
    if not is_sized:
        sch.annotate(w_out, MARGIN, pixels)
    sch.reorder(n, block, h_out, h_in, w_out, kernel_h, k_outer, w_in, lane, k_inner)
    work = primitives.product(primitives.extent(sch, loop) for loop in (block, h_out, h_in, w_out, w_in, lane))
    work *= 1 if is_sized else primitives.UNKNOWN**2 // (row_block * pixels)
    taps = primitives.static(sch, kernel_h) * primitives.static(sch, k_outer) * primitives.static(sch, k_inner)
    # of a loop over images and an open number of rows TVM cannot tell what of it is which, as instructions need
    shared, depth = (
        (primitives.fuse(sch, [n, block, h_out]), 3) if is_sized else (primitives.fuse(sch, [block, h_out]), 4)
    )
    if narrow is not None:
        sch.set_scope(anchor, 0, "local")
        sch.reverse_compute_at(narrow, w_out)
        before = before[:-1]
    stores = x86_narrow_store.compute_at(sch, last, w_out)
    primitives.parallel_if_worth(sch, shared, work * taps // primitives.MULTIPLY_ADDS)
    if is_sized:
        for producer in before[:-1]:
            sch.compute_inline(producer)  # a margin, into the copy that has pixels side by side
        before = before[-1:]
    for producer in reversed(before):
        sch.compute_at(producer, shared)
        sch.vectorize(sch.get_loops(producer)[-1])
    for loop in (kernel_h, k_outer, w_in):
        sch.unroll(loop)
    for store in stores:
        primitives.vectorize_and_unroll(sch, store, below=depth, lanes=lanes)
    primitives.vectorize_and_unroll(sch, sch.decompose_reduction(anchor, kernel_h), below=depth, lanes=lanes)
    tensorize(sch, lane, machine, dot_product(machine), TRANSPOSED, weights, later=not is_sized)
    if narrow is not None:
        neon_narrow_store.store(sch, narrow, depth, len(MICRO_KERNEL.sums))
