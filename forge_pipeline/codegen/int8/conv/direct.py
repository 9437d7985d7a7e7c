"""Convolution of bytes over blocked channels; what follows it up to the next QuantizeLinear is part of it.

Like ``direct``, with two or four channels to a step. The zero point of the image is folded into the bias, so padding
is filled with it. An image with fewer channels than a vector has lanes is read as int32 that hold as many channels.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from forge_pipeline.codegen.float32.conv.direct import (
    PIXELS,
    RESIDENT,
    VECTORS,
    block_and_lane,
    channels_at_once,
)
from forge_pipeline.codegen.float32.conv.geometry import Geometry, pad_image
from forge_pipeline.codegen.float32.conv.groups import merge_groups
from forge_pipeline.codegen.int8.conv import dynamic_shape
from forge_pipeline.codegen.int8.conv.words import Entry, pack_int32, quantize_and_pack_int32, word_of
from forge_pipeline.codegen.int8.isa.dot_product import (
    BYTES,
    PACKED,
    READS,
    WEIGHTS,
    DotProduct,
    products,
    tensorize,
    to_int16,
    unpack_int32,
)
from forge_pipeline.codegen.int8.isa.table import dot_product
from forge_pipeline.codegen.int8.register_tile import STEPS, EvenTile, choose_even_tile
from forge_pipeline.codegen.int8.requantize import Epilogue
from forge_pipeline.codegen.int8.x86 import narrow_store
from forge_pipeline.codegen.layout.builder import Array, Graph, Value
from forge_pipeline.codegen.layout.quantized_values import Rounded
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.elementwise_blocks import schedule_elementwise
from forge_pipeline.codegen.tir.flatten_pixels import ANY_ORDER, HEIGHT
from forge_pipeline.codegen.tir.machine import Machine, divisors
from forge_pipeline.codegen.tir.peel_padding import EDGES
from forge_pipeline.codegen.tir.prefetch.weights import FEWEST_ROWS, ask_for_next

NAME = "int8_conv"
ENTERS, SHARES = "forge.enters", "forge.shares"
"""Annotations of a template that quantizes its image itself, and of one whose neighbouring pixels share what they read
of a row."""


def emit(graph: Graph, source: Value, zero: int, weight: Array, geometry: Geometry, epilogue: Epilogue) -> relax.Expr:
    """Emit any convolution; the result is blocked."""
    lanes, dot = graph.machine.lanes, dot_product(graph.machine)
    geometry, weight = merge_groups(geometry, weight, lanes)
    few = geometry.groups == 1 and geometry.channels < lanes
    entry = source if few and isinstance(source, Rounded) and source.deferred is not None else None
    is_packed = few and (entry is not None or not graph.is_blocked(source))
    if entry is not None:
        image = entry.floats
    elif is_packed:
        image = graph.kernel(pack_int32, graph.plain(source), name="to_words", k_inner=dot.k_inner)
    else:
        image = graph.blocked(source)
    channels = -(-geometry.channels // geometry.groups // dot.k_inner) * dot.k_inner
    unit = dot.k_inner if is_packed else channels_at_once(channels, lanes)
    packed = pack_weight(weight, lanes, unit, dot.k_inner)
    oc_blocks, blocks = packed.shape[0], packed.shape[1] if is_packed else -(-channels // lanes)
    steps = int(np.prod(packed.shape[1:5]))
    in_place = not geometry.is_static and (is_packed or not dot.widens) and entry is None and is_pointwise(geometry)
    tiles = [
        choose_even_tile(graph.machine, geometry, stored // geometry.groups, steps, blocks, in_place=in_place)
        for stored in ((oc_blocks, oc_blocks + 1) if geometry.groups == 1 else (oc_blocks,))
    ]
    if tiles[-1].cycles < tiles[0].cycles:  # one more vector of filters, of zeros, makes them divide into wider tiles
        packed = np.concatenate([packed, np.zeros_like(packed[:1])])
        oc_blocks += 1
    tile = min(tiles, key=lambda tile: (tile.cycles, tile.pixels, tile.vectors))
    constants = epilogue.constants(graph, (oc_blocks, lanes))
    return graph.kernel(
        convolve, image, graph.constant(packed), *constants,
        name="conv2d_u8", geometry=geometry, zero=zero, epilogue=epilogue, tile=tile, dot=dot,
        entry=None if entry is None else (entry.affine, entry.axes), in_place=in_place,
    )  # fmt: skip


def is_pointwise(geometry: Geometry) -> bool:
    """Return whether a result reads the one pixel that lies where it does."""
    return not any(geometry.padding) and set(geometry.kernel) == set(geometry.strides) == {1}


def pack_weight(weight: Array, lanes: int, inner: int, k_inner: int) -> Array:
    """Return (filters, channels, h, w) as (oc_blocks, channels / inner, h, w, inner / k_inner, lanes, k_inner)."""
    filters, channels, height, width = weight.shape
    oc_blocks, blocks = -(-filters // lanes), -(-channels // inner)
    full = np.zeros((oc_blocks * lanes, blocks * inner, height, width), weight.dtype)
    full[:filters, :channels] = weight
    split = full.reshape(oc_blocks, lanes, blocks, inner // k_inner, k_inner, height, width)
    return np.ascontiguousarray(split.transpose(0, 2, 5, 6, 3, 1, 4))


def convolve(
    image: te.Tensor, weight: te.Tensor, bias: te.Tensor, factor: te.Tensor, *float_bias: te.Tensor,
    geometry: Geometry, zero: int, epilogue: Epilogue, tile: EvenTile, dot: DotProduct, entry: Entry | None,
    in_place: bool,
) -> te.Tensor:  # fmt: skip
    """Describe the convolution of blocked bytes, or of packed int32, with packed weights, and what is done to its sums.

    With ``entry`` the image is the model's input, which is packed to int32 here. ``in_place``: its pixels are read
    where they lie, and tiles are whole (``tail_tiles``).
    """
    if entry is not None:
        image = quantize_and_pack_int32(image, dot.k_inner, *entry)
    lanes, geometry = int(weight.shape[5]), geometry.of(image)
    total = sums_of(image, weight, geometry, zero, tile, dot, enters=entry is not None, in_place=in_place)
    return narrow_store.requantize(
        (image.shape[0], -(-geometry.filters // lanes), *geometry.output, lanes),
        epilogue,
        total,
        lambda _n, oc_block, _h, _w, out: (term(oc_block, out) for term in (bias, factor, *float_bias)),
    )


def sums_of(
    image: te.Tensor, weight: te.Tensor, geometry: Geometry, zero: int, tile: EvenTile, dot: DotProduct,
    *, enters: bool = False, in_place: bool = False, family: str = NAME,
) -> te.Tensor:  # fmt: skip
    """Describe the sums of a convolution for a schedule of ``family``, with pixels that only fill the last tile.

    ``enters``: the image is made by this kernel, from the model's input.
    """
    oc_blocks, parts, height, width, k_outers, lanes, _ = (int(extent) for extent in weight.shape)
    oc_blocks_per_group = oc_blocks // geometry.groups
    blocks_per_group = -(-geometry.channels // geometry.groups // lanes)
    is_packed = len(image.shape) == 4
    filler = word_of(zero, dot.k_inner) if is_packed else zero
    geometry = geometry.of(image)
    out_h, out_w = geometry.output
    if in_place:
        padded = image
    elif not geometry.is_static:
        read = to_int16(image) if dot.widens and not is_packed else image
        padded = pad_image(read, _with_margin(geometry, tile.pixels), filler)
    else:
        out_w = -(-out_w // tile.pixels) * tile.pixels
        if dot.widens and not is_packed and geometry.kernel == (1, 1) and not any(geometry.padding):
            padded, geometry = _pixels_to_int16(image, geometry, out_w), replace(geometry, strides=(1, 1))
        else:
            peel = dot.is_single and not is_packed
            padded = pad_image(image, geometry.padded_for(out_w), filler, by_rows=enters, peel=peel)
            padded = to_int16(padded) if dot.widens and not is_packed else padded
    (stride_h, stride_w), (dilation_h, dilation_w) = geometry.strides, geometry.dilation
    axes = [te.reduce_axis((0, parts), "block"), te.reduce_axis((0, height), "kernel_h")]
    axes += [te.reduce_axis((0, width), "kernel_w"), te.reduce_axis((0, k_outers), "k_outer")]
    part, kernel_h, kernel_w, k_outer = axes
    block, begin = block_and_lane(part, k_outers * dot.k_inner, lanes)
    long = partial(tirx.const, dtype="int64")  # as TVM's graphs count: the shift's operand is then cast in plain sight
    k_inner = te.reduce_axis((long(0), long(dot.k_inner)), "k_inner")

    def sums(n: Any, oc_block: Any, h: Any, w: Any, out: Any) -> Any:
        first = oc_block // oc_blocks_per_group * blocks_per_group if geometry.groups > 1 else 0
        y, x = (h, w) if in_place else (h * stride_h + kernel_h * dilation_h, w * stride_w + kernel_w * dilation_w)
        if is_packed:
            value = unpack_int32(padded(n, first + part, y, x), k_inner, dot)
        else:
            value = padded(n, first + block, y, x, begin + k_outer * dot.k_inner + k_inner)
        return te.sum(
            products(value, weight(oc_block, part, kernel_h, kernel_w, k_outer, out, k_inner)), axis=[*axes, k_inner]
        )

    shape = (image.shape[0], oc_blocks, out_h, out_w, lanes)
    attributes = {primitives.FAMILY: family, PIXELS: tile.pixels, VECTORS: tile.vectors, WEIGHTS: weight.dtype}
    attributes[READS] = PACKED if is_packed else BYTES
    attributes |= {ENTERS: 1} if enters else {ANY_ORDER: HEIGHT} if in_place else {}
    attributes |= {SHARES: 1} if tile.shares else {}
    return te.compute(shape, sums, name="sums", attrs=attributes)


def _pixels_to_int16(image: te.Tensor, geometry: Geometry, out_w: int) -> te.Tensor:
    """Describe a copy in int16 of the pixels that a kernel of one reads, side by side, ``out_w`` in a row."""
    (out_h, _), (stride_h, stride_w), last = geometry.output, geometry.strides, geometry.size[1] - 1
    beyond = (out_w - 1) * stride_w > last

    def pixel(n: Any, block: Any, h: Any, w: Any, lane: Any) -> Any:
        at = tirx.min(w * stride_w, last) if beyond else w * stride_w
        return image(n, block, h * stride_h, at, lane).astype("int16")

    batch, blocks, *_, lanes = image.shape
    return te.compute((batch, blocks, out_h, out_w, lanes), pixel, name="widen")


def _with_margin(geometry: Geometry, pixels: int) -> Geometry:
    """Return a convolution of symbolic width that reads what whole tiles need, less than ``pixels`` beyond results."""
    top, left, bottom, right = geometry.padding
    return replace(geometry, padding=(top, left, bottom, right + (pixels - 1) * geometry.strides[1]))


def schedule(sch: Schedule, machine: Machine) -> None:
    """Hold a tile of pixels by filters in registers along the whole reduction; then what follows, then store."""
    anchor = primitives.find(sch, NAME)
    annotations = sch.get(anchor).annotations
    if None in primitives.extents(sch, anchor)[2:4]:
        dynamic_shape.schedule_direct(sch, machine, anchor)
        return
    pixels, vectors = int(annotations[PIXELS]), int(annotations[VECTORS])
    before, last = primitives.split_around(sch, anchor)
    for block in before[:-1]:
        sch.compute_inline(block)  # a copy with a margin, into the one that widens it
    n, oc, h, w, out, *reduction, k_inner = sch.get_loops(anchor)
    oc_blocks, height, width, lanes = (primitives.static(sch, loop) for loop in (oc, h, w, out))
    steps = primitives.product(primitives.static(sch, loop) for loop in reduction)
    weight_bytes = dot_product(machine).k_inner * lanes * oc_blocks * steps
    enters = ENTERS in annotations
    is_widened = dot_product(machine).widens and annotations[READS] == BYTES and bool(before)
    image_bytes = primitives.static(sch, reduction[0]) * height * width * lanes
    if is_widened:  # where pixels are strided, that is more than there are results
        image_bytes = primitives.product(primitives.extents(sch, before[-1]))
    oc_out, oc_in = sch.split(oc, [None, vectors])
    w_out, w_in = sch.split(w, [None, pixels])
    weights_first = weight_bytes > min(image_bytes, RESIDENT)
    in_row_blocks = (enters or is_widened) and not weights_first
    if in_row_blocks:
        values = (
            _row_values(sch, before[-1], height) if enters else primitives.static(sch, reduction[0]) * width * lanes
        )
        h_out, h_in = sch.split(h, [None, rows_of_block(machine, height, values)])
        inner, shared_loops = [oc_out, h_in, w_out], [n, h_out]
    elif weights_first and _asks(machine, height, width, pixels, oc_blocks // vectors):
        inner, shared_loops = [sch.fuse(h, w_out)], [n, oc_out]
        ask_for_next(sch, inner[0], machine)
    else:
        inner, shared_loops = [w_out], [n, oc_out, h] if weights_first else [n, h, oc_out]
    block_in, kernel_h, kernel_w, k_outer = reduction
    shares = SHARES in annotations
    steps_in = [k_outer, w_in, kernel_w] if shares else [kernel_w, k_outer, w_in]
    sch.reorder(*shared_loops, *inner, block_in, kernel_h, *steps_in, oc_in, out, k_inner)
    shared = primitives.fuse(sch, shared_loops)
    stores = narrow_store.compute_at(sch, last, inner[-1])
    for block in before[-1:]:
        if in_row_blocks:
            sch.compute_at(block, shared)
            if not enters:
                sch.vectorize(sch.get_loops(block)[-1])
        else:
            spread_copy(sch, block, machine, is_row=enters)
    primitives.parallel_if_worth(sch, shared, oc_blocks * lanes * height * width * steps // STEPS)
    for loop in (w_in, oc_in, kernel_w if shares else k_outer):
        sch.unroll(loop)
    depth = 1 + len(inner)
    for block in stores:
        primitives.vectorize_and_unroll(sch, block, below=depth, lanes=lanes)
    primitives.vectorize_and_unroll(sch, sch.decompose_reduction(anchor, reduction[0]), below=depth, lanes=lanes)
    tensorize(sch, out, machine, dot_product(machine), str(annotations[READS]), str(annotations[WEIGHTS]))


def _asks(machine: Machine, height: int, width: int, pixels: int, panels: int) -> bool:
    """Return whether all tiles of an image are one loop that shares asking for the next panel of weights."""
    return width % pixels == 0 and height * width >= FEWEST_ROWS and panels >= machine.cores


def spread_copy(sch: Schedule, block: SBlockRV, machine: Machine, *, is_row: bool = False) -> None:
    """Copy an image by threads; where margins are taken from its rows, by ``edges`` or by TVM, these stay a loop.

    ``is_row``: a row is the innermost loop, to be vectorized by LLVM when TVM has taken the margins from it.
    """
    if is_row:
        values = primitives.product(primitives.extents(sch, block))
        primitives.parallel_if_worth(sch, primitives.fuse(sch, sch.get_loops(block)[:-1]), values)
        return
    if EDGES not in sch.get(block).annotations:
        schedule_elementwise(sch, block, machine)
        return
    values = primitives.product(primitives.extents(sch, block))
    *places, _, lane = sch.get_loops(block)
    sch.vectorize(lane)
    primitives.parallel_if_worth(sch, primitives.fuse(sch, places), values)


def _row_values(sch: Schedule, copy: SBlockRV, rows: int) -> int:
    """Return how many 16-bit values of packed int32 a row of results takes, neighbours' not counted."""
    packed, height, width = (int(extent) for extent in sch.get(copy).writes[0].source.ty.shape[1:])
    return max(1, 2 * packed * width * height // rows)


def rows_of_block(machine: Machine, height: int, row_values: int) -> int:
    """Return how many rows to compute from one widened copy: it stays in a part of the second cache, and all cores
    have row blocks. Rows are a little longer than ``row_values`` says where the image is padded."""
    room = machine.l2 // 4 // (2 * row_values)
    fitting = [rows for rows in divisors(height, max(1, room)) if height // rows >= 2 * machine.cores]
    return max(fitting or [1])
