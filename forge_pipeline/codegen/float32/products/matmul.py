"""Matrix products: by constant weights, which are packed into panels, and of two activations, in batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.amx import bfloat16 as bfloat16_amx
from forge_pipeline.codegen.float32.products import open_matmul, row_matmul
from forge_pipeline.codegen.float32.products.open_matmul import APART, PANEL, SERIAL_WORK, row_bytes
from forge_pipeline.codegen.layout.builder import Array, Graph, Value, has_known_shape, shape_of
from forge_pipeline.codegen.tir import bfloat16_pairs, primitives
from forge_pipeline.codegen.tir.broadcasting import broadcast, places
from forge_pipeline.codegen.tir.elementwise_blocks import schedule_elementwise
from forge_pipeline.codegen.tir.flatten_pixels import ANY_ORDER
from forge_pipeline.codegen.tir.machine import Machine, choose_tile

NAME = "matmul"
VECTOR_PANEL = 4
"""Vectors in a panel when one row is multiplied: as many sums side by side as hide the latency of the additions."""

UNROLLED_STEPS = 4

PACKING_ROWS = 32
"""Rows for which packing an operand pays: it is read along panels, whatever the columns are divided by."""

TYPICAL_ROWS = 128
"""Rows that are to be multiplied by weights which are read once: those of a sentence, or a share of an image."""

SHORTEST_PART = 512
"""Steps below which adding to sums in memory costs more than reading weights twice."""


def multiply(graph: Graph, call: relax.Call) -> Value | None:
    """Take products of float tensors, of halves those by constant weights."""
    left, right = call.args
    operands = graph.look(left), graph.look(right)
    ranks = [len(shape_of(side)) for side in (left, right) if has_known_shape(side, symbolic_axes=range(8))]
    if len(ranks) < 2 or min(ranks) < 2 or call.attrs.out_dtype not in (None, "", "void", "float32"):
        return None
    steps, columns = shape_of(left)[-1], shape_of(right)[-1]
    weight = operands[1].constant
    if weight is not None and weight.ndim == 2:
        family = NAME if _rows_together(shape_of(left)[:-1]) == 1 else open_matmul.NAME
        machine = graph.machine.computing(str(weight.dtype))
        tiled = bfloat16_amx.emit_product(graph, operands[0], tuple(shape_of(left)), weight)
        if tiled is not None:
            return Value(plain=tiled)
        source = graph.plain(operands[0])
        if machine.multiplies_pairs(_rows_together(shape_of(left)[:-1])) and weight.shape[0] % 2 == 0:
            source, steps = in_pairs(graph, operands[0]), steps // 2
            weight = bfloat16_pairs.paired(*np.split(weight, 2))
        panels = graph.constant(pack_weight(weight, panel_width(machine, shape_of(left)[:-1], *weight.shape)))
        sums: list[relax.Expr] = []
        for part in cuts(machine, shape_of(left)[:-1], steps):
            sums = [graph.kernel(multiply_panels, source, panels, *sums, name="dense", columns=weight.shape[1],
                                 family=family, part=part)]  # fmt: skip
        return Value(plain=sums[0])
    if ranks[0] != ranks[1] and min(ranks) != 2:
        return None
    tensors = [graph.plain(operand) for operand in operands]
    if ranks[1] == 2 < ranks[0]:  # rows of all batches are rows of one product, which reads the matrix once
        leading = shape_of(left)[:-1]
        flat = graph.emit(relax.op.reshape(tensors[0], (math.prod(leading), steps)))
        result = _multiply_activations(graph, [flat, tensors[1]])
        return Value(plain=graph.emit(relax.op.reshape(result, (*leading, columns))))
    return Value(plain=_multiply_activations(graph, tensors))


def in_pairs(graph: Graph, value: Value) -> relax.Expr:
    """Return a value's rows as pairs of bfloat16, which all products of it share."""
    if value.pairs is None:
        value.pairs = graph.kernel(_pair, graph.plain(value), name="pair")
    return value.pairs


def _pair(rows: te.Tensor) -> te.Tensor:
    """Describe (..., steps) as pairs (..., steps / 2)."""
    half = int(rows.shape[-1]) // 2
    return te.compute(
        (*rows.shape[:-1], half),
        lambda *at: bfloat16_pairs.pair(rows(*at), rows(*at[:-1], at[-1] + half)),
        name="pair",
    )


def _multiply_activations(graph: Graph, tensors: list[relax.Expr]) -> relax.Expr:
    """Emit the product of two tensors of which neither is constant."""
    rows, steps, columns = *shape_of(tensors[0])[-2:], shape_of(tensors[1])[-1]
    family = NAME if all(isinstance(extent, int) for extent in (rows, steps, columns)) else open_matmul.NAME
    lanes = graph.machine.lanes
    if family == NAME and rows >= PACKING_ROWS and columns > lanes:
        width = panel_width(graph.machine, (rows,), steps, columns)
        return graph.kernel(multiply_packing, *tensors, name="matmul", width=width)
    if isinstance(columns, int) and (columns % lanes == 0 or (family == NAME and 2 * columns <= lanes)):
        return graph.kernel(multiply_batched, *tensors, name="matmul", family=family)
    if rows == 1 and not (isinstance(columns, int) and columns < lanes):
        return graph.kernel(multiply_batched, *tensors, name="matmul", family=row_matmul.NAME)
    vectors = -(-columns // lanes) if isinstance(columns, int) else open_matmul.PACKED_VECTORS
    width = min(vectors, open_matmul.PACKED_VECTORS) * lanes
    panels = graph.kernel(multiply_batched, *tensors, name="matmul", packs=width)
    return graph.kernel(open_matmul.crop, panels, columns, name="crop")


def panel_width(machine: Machine, rows: Sequence[Any], steps: int, columns: int) -> int:
    """Return the number of columns that a panel of weights holds, which are multiplied by ``rows``, in batches or not.

    Any number of rows that is the size of a batch shares it with one row.
    """
    together = _rows_together(rows)
    if together == 1 or (together is None and (len(rows) == 1 or rows[-1] == 1)):
        return min(VECTOR_PANEL, -(-columns // machine.lanes)) * machine.lanes
    known = together or rows[-1]
    count = known if isinstance(known, int) else None
    return open_matmul.panel_vectors(machine, steps, columns, count, machine.item * steps) * machine.lanes


def cuts(machine: Machine, rows: Sequence[Any], steps: int) -> list[tuple[int, int]]:
    """Return the parts (first, end) of so many steps that are multiplied one after the other, and added up.

    Of that many rows that it fills, the part that is multiplied stays in the second cache, and weights are read once.
    """
    known = _rows_together(rows)
    together = min(TYPICAL_ROWS, known) if known is not None else TYPICAL_ROWS
    count = min(-(-machine.item * together * steps // (machine.l2 // 2)), steps // SHORTEST_PART) or 1
    size = -(-steps // count)
    return [(first, min(first + size, steps)) for first in range(0, steps, size)]


def _rows_together(rows: Sequence[Any]) -> int | None:
    """Return how many rows ``flatten_pixels`` makes one axis of; None where a call brings them."""
    return math.prod(rows[-2:]) if all(isinstance(extent, int) for extent in rows[-2:]) else None


def pack_weight(weight: Array, width: int) -> Array:
    """Return (steps, columns) as (panels, steps, width); missing columns are zero."""
    steps, columns = weight.shape
    panels = -(-columns // width)
    full = np.zeros((steps, panels * width), weight.dtype)
    full[:, :columns] = weight
    return full.reshape(steps, panels, width).transpose(1, 0, 2)


def multiply_panels(
    left: te.Tensor, panels: te.Tensor, *sums: te.Tensor, columns: int, family: str, part: tuple[int, int]
) -> te.Tensor:
    """Describe (..., rows, steps) times packed weights: the ``part`` from a first step to an end, added to ``sums``.

    The columns that fill the last panel are computed too: left out, they would be a test for every number of it.
    """
    count, width = int(panels.shape[0]), int(panels.shape[2])
    first, end = part
    step = te.reduce_axis((0, end - first), "step")

    def element(*index: Any) -> Any:
        *row, column = index
        weight = panels[column // width, first + step, column % width]
        value = left(*row, first + step)
        is_paired = panels.dtype == "int32"
        return te.sum(bfloat16_pairs.dot(value, weight) if is_paired else value * weight, axis=[step])

    rows = left.shape[:-1]
    attributes = {primitives.FAMILY: family, PANEL: width, APART: row_bytes(left)}
    if len(rows) > 1 and family == open_matmul.NAME:
        attributes[ANY_ORDER] = len(rows) - 2
    product = te.compute((*rows, count * width), element, name="product", attrs=attributes)
    if count * width == columns and not sums:
        return product

    def read(*index: Any) -> Any:
        return sum((before(*index) for before in sums), start=product(*index))

    return te.compute((*rows, columns), read, name="sum" if sums else "crop")


def multiply_batched(left: te.Tensor, right: te.Tensor, family: str = NAME, packs: int = 0) -> te.Tensor:
    """Describe (..., rows, steps) times (..., steps, columns), with the leading axes broadcast.

    With ``packs``, columns are packed into panels of that many, and the result has panels too.
    """
    step = te.reduce_axis((0, left.shape[-1]), "step")
    leading = broadcast(left.shape[:-2], right.shape[:-2])
    if packs:
        return open_matmul.multiply_packing(left, right, leading, places, packs)

    def element(*index: Any) -> Any:
        *batch, row, column = index
        a, b = (places(batch, side.shape[:-2]) for side in (left, right))
        return te.sum(left(*a, row, step) * right(*b, step, column), axis=[step])

    shape = (*leading, left.shape[-2], right.shape[-1])
    attributes = {primitives.FAMILY: family, PANEL: 0, APART: row_bytes(left)}
    return te.compute(shape, element, name="product", attrs=attributes)


def multiply_packing(left: te.Tensor, right: te.Tensor, width: int) -> te.Tensor:
    """Describe (..., rows, steps) times (..., steps, columns), packed into panels first; leading axes are broadcast."""
    step = te.reduce_axis((0, left.shape[-1]), "step")
    columns = int(right.shape[-1])
    count, leading = -(-columns // width), broadcast(left.shape[:-2], right.shape[:-2])

    def packed(*index: Any) -> Any:
        *batch, panel, k, lane = index
        column = panel * width + lane
        value = right(*batch, k, column)
        return value if columns % width == 0 else tirx.if_then_else(column < columns, value, tirx.const(0, right.dtype))

    def element(*index: Any) -> Any:
        *batch, row, column = index
        a, b = (places(batch, side.shape[:-2]) for side in (left, right))
        return te.sum(left(*a, row, step) * panels(*b, column // width, step, column % width), axis=[step])

    panels = te.compute((*right.shape[:-2], count, right.shape[-2], width), packed, name=open_matmul.PANELS)
    attributes = {primitives.FAMILY: open_matmul.NAME, PANEL: width, APART: row_bytes(left)}
    product = te.compute((*leading, left.shape[-2], count * width), element, name="product", attrs=attributes)
    if count * width == columns:
        return product
    return te.compute((*product.shape[:-1], columns), product, name="crop")


def schedule(sch: Schedule, machine: Machine) -> None:
    """Hold a tile of rows by columns in registers along all steps."""
    lanes = machine.lanes
    anchor = primitives.find(sch, NAME)
    width, apart = (int(sch.get(anchor).annotations[name]) for name in (PANEL, APART))
    before, last = primitives.split_around(sch, anchor)
    for block in before:
        schedule_elementwise(sch, block, machine)
    *leading, m, n, k = sch.get_loops(anchor)
    if width and leading and primitives.extent(sch, m) == 1:  # steps of a sequence that come before a batch of one
        leading[-1], m = m, leading[-1]
    rows, columns, steps = primitives.extent(sch, m), primitives.static(sch, n), primitives.static(sch, k)
    known_rows = rows if rows is not None else machine.registers
    vectors = width // lanes or max(1, columns // lanes)
    tile = choose_tile(
        machine, pixels=known_rows, vectors=vectors, steps=steps, max_nr=vectors if width else 4, apart=apart
    )
    nr = width // lanes or tile.vectors
    if nr != tile.vectors:
        tile = choose_tile(machine, pixels=known_rows, vectors=nr, steps=steps, max_nr=nr, apart=apart)
    mr = tile.pixels
    m_out, m_in = sch.split(m, [None, mr])
    n_out, n_in, lane = sch.split(n, [None, nr, lanes])
    work = primitives.product([*(primitives.extent(sch, loop) for loop in leading), rows, columns, steps])
    is_small = rows is not None and work < SERIAL_WORK
    has_tail = rows is None or rows % mr != 0
    outer = [n_out, m_out] if has_tail or columns >= known_rows else [m_out, n_out]
    sch.reorder(*leading, *outer, k, m_in, n_in, lane)
    if has_tail:
        shared, at, depth = primitives.fuse(sch, [*leading, n_out]), m_out, 2
    else:
        shared = at = primitives.fuse(sch, [*leading, *outer])
        depth = 1
    sch.reverse_compute_at(last, at)
    if not is_small:
        primitives.parallel_if_worth(sch, shared, work)
    primitives.vectorize_and_unroll(sch, last, below=depth, lanes=lanes)
    sch.vectorize(lane)
    sch.unroll(m_in)
    sch.unroll(n_in)
    if mr == 1 and steps % UNROLLED_STEPS == 0:
        k, inner = sch.split(k, [None, UNROLLED_STEPS])
        sch.unroll(inner)
    primitives.vectorize_and_unroll(sch, sch.decompose_reduction(anchor, k), below=depth, lanes=lanes)


HANDLERS = {"relax.matmul": multiply}
