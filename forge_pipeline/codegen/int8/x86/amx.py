"""Products of bytes in AMX's tiles: convolutions as products of patches, and matrix products.

A tile register holds 16 rows of 64 bytes. One instruction adds to 16 by 16 sums the products of 16 rows of 64
activations by 64 steps of 16 filters (Intel's architecture manual, TDPBUSD). Four tiles of sums share two of each, so
that every load serves two products. Sums pass through memory once, where all that follows a product is applied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.float32.conv.geometry import Geometry, pad_image
from forge_pipeline.codegen.int8.isa.amx import (
    BYTES,
    K_INNER,
    LANES,
    QUADS,
    ROWS,
    intrinsic,
    is_worth,
    pack_weight,
    round_up,
    tiles_of,
)
from forge_pipeline.codegen.int8.isa.dot_product import products
from forge_pipeline.codegen.int8.requantize import Epilogue, to_float_if_needed
from forge_pipeline.codegen.layout.builder import Array, Graph, Value
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine

NAME = "int8_amx"
PATCHES = "patches"
IMAGE = 5
"""Axes of a blocked image."""


def emit(
    graph: Graph, source: Value, zero: int, weight: Array, geometry: Geometry, epilogue: Epilogue
) -> relax.Expr | None:
    """Emit a convolution of one group as the product of its patches; the result is blocked."""
    lanes = graph.machine.lanes
    if not graph.machine.amx or lanes != LANES or geometry.groups != 1 or geometry.channels < lanes:
        return None
    if not geometry.is_static:
        return None
    filters, channels, height, width = weight.shape
    blocks = -(-channels // lanes)
    full = np.zeros((filters, blocks * lanes, height, width), np.int8)
    full[:, :channels] = weight
    steps = full.transpose(2, 3, 1, 0).reshape(-1, filters)
    rows = geometry.output[0] * geometry.output[1]
    if not is_worth(rows, channels * height * width, filters):
        return None
    return graph.kernel(
        convolve, graph.blocked(source), graph.constant(pack_weight(steps)),
        *epilogue.constants(graph, _columns(filters)),
        name="conv2d_u8", geometry=geometry, zero=zero, epilogue=epilogue, mr=tiles_of(rows), filters=filters,
    )  # fmt: skip


def emit_product(graph: Graph, flat: relax.Expr, rows: Any, weight: Array, epilogue: Epilogue) -> relax.Expr | None:
    """Emit (rows, steps) times (steps, columns); None where vectors serve as well."""
    steps, columns = weight.shape
    if not graph.machine.amx or not isinstance(rows, int) or not is_worth(rows, steps, columns):
        return None
    return graph.kernel(
        by_tiles, flat, graph.constant(pack_weight(weight)),
        *epilogue.constants(graph, _columns(columns)),
        name="dense_u8", columns=columns, epilogue=epilogue, mr=tiles_of(rows),
    )  # fmt: skip


def _columns(count: int) -> tuple[int]:
    """Return the form of one number for each column of whole tiles."""
    return (round_up(count, LANES * tiles_of(count)),)


def by_tiles(
    left: te.Tensor, panels: te.Tensor, bias: te.Tensor, factor: te.Tensor, *float_bias: te.Tensor,
    columns: int, epilogue: Epilogue, mr: int,
) -> te.Tensor:  # fmt: skip
    """Describe (rows, steps) times packed weights, and what is done to the sums."""
    rows, steps = (int(extent) for extent in left.shape)
    chunks = int(panels.shape[1])

    def patch(_: Any, chunk: Any, m: Any, k: Any) -> Any:
        step = chunk * BYTES + k
        inside = [condition for condition, needed in (
            (m < rows, rows % (ROWS * mr) != 0), (step < steps, steps % BYTES != 0),
        ) if needed]  # fmt: skip
        value = left(m, step)
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, "uint8")) if inside else value

    patches = te.compute((1, chunks, round_up(rows, ROWS * mr), BYTES), patch, name=PATCHES)
    total = _sums(patches, panels)
    width = LANES * int(panels.shape[2])

    def requantized(m: Any, n: Any) -> Any:
        value = total(0, n // width, m, n % width // LANES, n % LANES)
        return epilogue.result(value, bias(n), factor(n), *(term(n) for term in float_bias))

    return te.compute((rows, columns), requantized, name=f"finish_{to_float_if_needed(epilogue.affine)}")


def convolve(
    image: te.Tensor, panels: te.Tensor, bias: te.Tensor, factor: te.Tensor, *float_bias: te.Tensor,
    geometry: Geometry, zero: int, epilogue: Epilogue, mr: int, filters: int,
) -> te.Tensor:  # fmt: skip
    """Describe the convolution of blocked bytes with packed weights, and what is done to its sums."""
    batch, blocks, _, _, lanes = image.shape
    blocks, lanes, chunks = int(blocks), int(lanes), int(panels.shape[1])
    padded = pad_image(image, geometry, zero)
    height, width = geometry.output
    taps = geometry.kernel[0] * geometry.kernel[1]
    (stride_h, stride_w), (dilation_h, dilation_w) = geometry.strides, geometry.dilation

    def patch(n: Any, chunk: Any, m: Any, k: Any) -> Any:
        part = chunk * (BYTES // lanes) + k // lanes  # weights of parts beyond the last are zero
        if chunks * BYTES != taps * blocks * lanes:
            part = tirx.min(part, taps * blocks - 1)
        pixel = tirx.min(m, height * width - 1) if height * width % (ROWS * mr) else m
        tap, block = part // blocks, part % blocks
        y = pixel // width * stride_h + tap // geometry.kernel[1] * dilation_h
        x = pixel % width * stride_w + tap % geometry.kernel[1] * dilation_w
        return padded(n, block, y, x, k % lanes)

    patches = te.compute((batch, chunks, round_up(height * width, ROWS * mr), BYTES), patch, name=PATCHES)
    total = _sums(patches, panels)
    nr = int(panels.shape[2])

    def requantized(n: Any, oc_block: Any, h: Any, w: Any, lane: Any) -> Any:
        out = oc_block * lanes + lane
        value = total(n, oc_block // nr, h * width + w, oc_block % nr, lane)
        return epilogue.result(value, bias(out), factor(out), *(term(out) for term in float_bias))

    shape = (batch, -(-filters // lanes), height, width, lanes)
    return te.compute(shape, requantized, name=f"finish_{to_float_if_needed(epilogue.affine)}")


def _sums(patches: te.Tensor, panels: te.Tensor) -> te.Tensor:
    batch, chunks, padded_rows, _ = patches.shape
    count, _, nr, *_ = (int(extent) for extent in panels.shape)
    chunk, k_outer = te.reduce_axis((0, int(chunks)), "chunk"), te.reduce_axis((0, QUADS), "k_outer")
    k_inner = te.reduce_axis((0, K_INNER), "k_inner")

    def sums(n: Any, panel: Any, m: Any, v: Any, column: Any) -> Any:
        activation = patches(n, chunk, m, k_outer * K_INNER + k_inner)
        return te.sum(
            products(activation, panels(panel, chunk, v, k_outer, column, k_inner)), axis=[chunk, k_outer, k_inner]
        )

    return te.compute((batch, count, padded_rows, nr, LANES), sums, name="sums", attrs={primitives.FAMILY: NAME})


def schedule(sch: Schedule, machine: Machine) -> None:
    """Compute a few tiles along all steps, then what follows from memory; patches of some rows serve all filters."""
    anchor = primitives.find(sch, NAME)
    before, last = primitives.split_around(sch, anchor)
    n, panel, m, v, column, chunk, k_outer, k_inner = sch.get_loops(anchor)
    panels, padded_rows, nr, chunks = (primitives.static(sch, loop) for loop in (panel, m, v, chunk))
    mr = 2 if padded_rows % (2 * ROWS) == 0 else 1
    m_out, m_in = sch.split(m, [None, ROWS * mr])
    inside = [chunk, m_in, v] if nr > 1 else [v, chunk, m_in]
    sch.reorder(n, m_out, panel, *inside, column, k_outer, k_inner)
    rows_only = padded_rows // (ROWS * mr) >= 2 * machine.cores or panels == 1
    if len(sch.get_loops(last)) == IMAGE:
        columns = primitives.static(sch, sch.get_loops(last)[3])
        sch.transform_block_layout(last, lambda n, oc_block, h, w, lane: (n, oc_block, h * columns + w, lane))
    shared = primitives.fuse(sch, [n, m_out] if rows_only else [n, m_out, panel])
    sch.reverse_compute_at(last, panel if rows_only else shared)
    for block in before:
        if rows_only and sch.get(block).name_hint == PATCHES:
            sch.compute_at(block, shared)
            sch.vectorize(sch.split(sch.get_loops(block)[-1], [None, machine.lanes])[1])
        else:
            primitives.schedule_elementwise(sch, block, machine)
    primitives.parallel_if_worth(sch, shared, panels * padded_rows * nr * chunks * BYTES * LANES)
    primitives.vectorize_where_filled(sch, last, machine.lanes)
    zeros = sch.decompose_reduction(anchor, chunk)
    sch.vectorize(sch.get_loops(zeros)[-1])
    sch.tensorize(chunk if chunks > 1 else m_in, intrinsic(chunks, mr, nr))
