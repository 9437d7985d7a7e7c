"""Products of rows that are quantized in blocks by constant weights that are too, of four or eight bits.

Inside a block sums are exact, in int32. They are multiplied by both scales and added up in float32. Weights of four
bits are stored without a sign, two steps to a byte, and taken apart once for a tile of rows. What is taken from weights
so that none is negative comes back by the sum of a row's block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.int8.isa.dot_product import BYTES, DotProduct, products, tensorize
from forge_pipeline.codegen.int8.isa.table import INSTRUCTION_SETS
from forge_pipeline.codegen.layout.builder import Array, Graph, Unchanged, Value, shape_of
from forge_pipeline.codegen.layout.quantized_values import BlockWeight, QuantizedBlocks
from forge_pipeline.codegen.onnx_import.operators.integers.quantization import DEQUANTIZE_BLOCKS
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import LOAD_COST, Machine

NAME, TOTALS = "block_matmul", "block_totals"
ROWS, BITS_OF = "forge.rows", "forge.bits"
"""The annotations with the rows of a tile, and the bits of a weight."""

SUMS, UNPACKED, PADDED = "sums", "unpacked", "pad"
"""The names of the blocks that add up products, take weights apart, and copy rows to fill tiles."""

BITS, NIBBLE, BYTE = 8, 16, 256
"""The bits of a byte, how many numbers four bits hold, and eight."""

VECTORS = 4
"""Vectors in a panel at most."""

COMBINING = 3
"""Instructions that add a block's sums to a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a product is computed: weights of ``bits`` bits by ``dot``, blocks of ``size`` steps, tiles of ``rows``."""

    dot: DotProduct
    bits: int
    size: int
    rows: int
    columns: int


def multiply(graph: Graph, call: relax.Call) -> Value | None:
    """Take activations and weights in the same blocks of a row, and of a column."""
    left, weight = graph.look(call.args[0]), graph.look(call.args[1])
    if not isinstance(left, QuantizedBlocks) or not isinstance(weight, BlockWeight) or weight.integers.ndim != 2:
        return None
    steps, columns = weight.integers.shape
    extents = shape_of(left.integers)
    blocks = int(shape_of(left.scales)[-1])
    size = steps // blocks
    if len(extents) < 2 or not all(isinstance(extent, int) for extent in extents):
        return None
    lowest, highest = (extreme(weight.integers.reshape(blocks, size, columns), axis=1) for extreme in (np.min, np.max))
    bits = BITS // 2 if (highest - lowest).max() < NIBBLE else BITS
    dot = _dot_product(graph.machine, bits)
    scales = weight.scales.reshape(blocks, size, columns)
    if dot is None or (highest - lowest).max() >= BYTE or size % (2 * dot.k_inner) or (scales != scales[:, :1]).any():
        return None
    rows = primitives.product(extents[:-1])
    mr, nr = choose_tile(graph.machine, dot, rows, -(-columns // graph.machine.lanes), size // dot.k_inner)
    form = Form(dot=dot, bits=bits, size=size, rows=mr, columns=columns)
    offset = offsets(lowest, highest, form)
    width = nr * graph.machine.lanes
    codes = (weight.integers - np.repeat(np.broadcast_to(offset, lowest.shape), size, axis=0)).astype(form.dot.weights)
    operands = [
        graph.emit(relax.op.reshape(value, (rows, extent)))
        for value, extent in ((left.integers, steps), (left.scales, blocks))
    ]
    operands += [graph.constant(pack(codes, width, form)), graph.constant(in_panels(scales[:, 0], width))]
    if offset.any():
        operands.append(graph.kernel(add_up, operands[0], name="add_up", size=size))
        operands.append(graph.constant(in_panels(np.broadcast_to(offset, lowest.shape).astype(np.int16), width)) if offset.size > 1 else graph.constant(offset.astype(np.int16)))
    result = graph.kernel(by_panels, *operands, name="dense_blocks", form=form)
    return Value(plain=graph.emit(relax.op.reshape(result, (*extents[:-1], columns))))


def _dot_product(machine: Machine, bits: int) -> DotProduct | None:
    """Return what a machine has for weights of four bits or eight."""
    isa = INSTRUCTION_SETS.get(machine.dot_product)
    return None if isa is None else isa.signed if bits == BITS else isa.nibbles


def offsets(lowest: Array, highest: Array, form: Form) -> Array:
    """Return what is taken from the weights of each block and column (blocks, columns); one number where it serves all.

    ``lowest`` and ``highest`` are the extremes of (blocks, columns).
    """
    least, most = (0, NIBBLE - 1) if form.bits < BITS else (0, 255) if form.dot.weights == "uint8" else (-128, 127)
    usual = np.full((1, 1), -8 if form.bits < BITS else -128 if form.dot.weights == "uint8" else 0)
    fits = (lowest - usual >= least).all() and (highest - usual <= most).all()
    return usual if fits else lowest - least


def pack(codes: Array, width: int, form: Form) -> Array:
    """Return (steps, columns) as (panels, steps / k_inner, width, k_inner), four bits as half as many pairs."""
    steps, columns = codes.shape
    panels, k_inner = -(-columns // width), form.dot.k_inner
    full = np.zeros((steps, panels * width), codes.dtype)
    full[:, :columns] = codes
    packed = full.reshape(steps // k_inner, k_inner, panels, width).transpose(2, 0, 3, 1)
    if form.bits < BITS:
        packed = packed[:, ::2].astype(np.uint8) | packed[:, 1::2].astype(np.uint8) << np.uint8(4)
    return np.ascontiguousarray(packed)


def in_panels(factors: Array, width: int) -> Array:
    """Return (blocks, columns) as (panels, blocks, width); missing columns are zero."""
    blocks, columns = factors.shape
    panels = -(-columns // width)
    full = np.zeros((blocks, panels * width), factors.dtype)
    full[:, :columns] = factors
    return np.ascontiguousarray(full.reshape(blocks, panels, width).transpose(1, 0, 2))


def choose_tile(machine: Machine, dot: DotProduct, rows: int, vectors: int, groups: int) -> tuple[int, int]:
    """Return rows and vectors of a tile: sums in int32 and in float32 of all of them are in registers."""
    best: tuple[float, int, int] | None = None
    for nr in range(1, min(VECTORS, vectors) + 1):
        for mr in range(1, min(rows, machine.registers) + 1):
            if max(mr * nr, 2) > 2 and 2 * mr * nr + nr + dot.scratch >= machine.registers:
                break
            step = dot.step_cycles(machine, mr, nr) + nr
            cycles = -(-rows // mr) * -(-vectors // nr) * (step * groups + COMBINING * mr * nr / machine.fma_ports)
            if best is None or cycles <= best[0]:
                best = cycles, mr, nr
    assert best is not None  # noqa: S101 - one by one always fits
    return best[1:]


def add_up(left: te.Tensor, size: int) -> te.Tensor:
    """Describe the sum of each block of a row."""
    step = te.reduce_axis((0, size), "step")
    rows, steps = left.shape

    def total(row: Any, block: Any) -> Any:
        return te.sum(left(row, block * size + step).astype("int32"), axis=[step])

    return te.compute((rows, steps // size), total, name="total", attrs={primitives.FAMILY: TOTALS})


def by_panels(
    left: te.Tensor, factors: te.Tensor, packed: te.Tensor, scales: te.Tensor, *offset: te.Tensor, form: Form
) -> te.Tensor:
    """Describe (rows, steps) times packed weights.

    ``offset``: the sums of the blocks of each row, and what was taken from weights.
    """
    rows, steps = (int(extent) for extent in left.shape)
    panels, blocks, width = (int(extent) for extent in scales.shape)
    k_inner, size, groups = form.dot.k_inner, form.size, form.size // form.dot.k_inner
    whole = -(-rows // form.rows) * form.rows
    source, factors = _padded(left, whole, form.dot.activation), _padded(factors, whole, "float32")
    totals = [_padded(tensor, whole, "int32") for tensor in offset[:1]]
    weights = packed if form.bits == BITS else _unpacked(packed, form.dot.weights)
    group, inner, block = (
        te.reduce_axis((0, extent), name)
        for extent, name in ((groups, "group"), (k_inner, "inner"), (blocks, "block"))
    )

    def part(row: Any, panel: Any, at: Any, column: Any) -> Any:
        weight = weights(panel, at * groups + group, column, inner)
        return te.sum(products(source(row, at * size + group * k_inner + inner), weight), axis=[group, inner])

    sums = te.compute((whole, panels, blocks, width), part, name=SUMS)

    def scaled(row: Any, panel: Any, column: Any) -> Any:
        total = sums(row, panel, block, column)
        if offset:
            taken = offset[1](panel, block, column) if len(offset[1].shape) > 2 else offset[1](0, 0)
            total = total + totals[0](row, block) * taken.astype("int32")
        factor = factors(row, block) * scales(panel, block, column)
        return te.sum(total.astype("float32") * factor, axis=[block])

    attributes = {primitives.FAMILY: NAME, ROWS: form.rows, BITS_OF: form.bits}
    product = te.compute((whole, panels, width), scaled, name="product", attrs=attributes)
    return te.compute(
        (rows, form.columns), lambda row, column: product(row, column // width, column % width), name="finish"
    )


def _padded(tensor: te.Tensor, rows: int, dtype: str) -> te.Tensor:
    """Describe a tensor of two axes with that many rows, the last of zeros, in another type."""
    if int(tensor.shape[0]) == rows and tensor.dtype == dtype:
        return tensor

    def element(row: Any, column: Any) -> Any:
        inside = tensor(row, column).astype(dtype)
        return inside if int(tensor.shape[0]) == rows else tirx.if_then_else(row < tensor.shape[0], inside, tirx.const(0, dtype))

    return te.compute((rows, tensor.shape[1]), element, name=PADDED)


def _unpacked(packed: te.Tensor, dtype: str) -> te.Tensor:
    """Describe numbers of four bits, of which a byte has one of an even step, and in its upper half that of the next."""
    panels, pairs, *rest = packed.shape

    def element(panel: Any, step: Any, *at: Any) -> Any:
        byte = packed(panel, step // 2, *at)
        return (byte >> (step % 2 * 4).astype("uint8") & tirx.const(NIBBLE - 1, "uint8")).astype(dtype)

    return te.compute((panels, 2 * pairs, *rest), element, name=UNPACKED)


def schedule(sch: Schedule, machine: Machine) -> None:
    """Hold a tile of rows by a panel in registers along all blocks."""
    anchor = primitives.find(sch, NAME)
    mr, bits = (int(sch.get(anchor).annotations[name]) for name in (ROWS, BITS_OF))
    dot = _dot_product(machine, bits)
    assert dot is not None  # noqa: S101 - there is a product
    before, last = primitives.split_around(sch, anchor)
    sums = next(block for block in before if sch.get(block).name_hint == SUMS)
    unpacked = [block for block in before if sch.get(block).name_hint == UNPACKED]
    for block in before:
        if sch.get(block).name_hint.startswith(PADDED):
            primitives.schedule_elementwise(sch, block, machine)
    m, panel, column, block = sch.get_loops(anchor)
    work = primitives.product(primitives.extent(sch, loop) or 1 for loop in (m, panel, column, block))
    m_out, m_in = sch.split(m, [None, mr])
    vector, lane = sch.split(column, [None, machine.lanes])
    sch.reorder(panel, m_out, block, m_in, vector, lane)
    shared = sch.fuse(panel, m_out)
    sch.reverse_compute_at(last, shared)
    primitives.parallel_if_worth(sch, shared, work * 32)
    for loop in (m_in, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    primitives.vectorize_where_filled(sch, last, machine.lanes)
    sch.compute_at(sums, block, preserve_unit_loops=True)
    sch.set_scope(sums, 0, "local")
    rows, _, _, wide, group, inner = sch.get_loops(sums)[-6:]
    wide, lane = sch.split(wide, [None, machine.lanes])
    pair, half = sch.split(group, [None, 2])
    sch.reorder(pair, half, rows, wide, lane, inner)
    for loop in (half, rows, wide):
        sch.unroll(loop)
    for weights in unpacked:
        sch.compute_at(weights, pair, preserve_unit_loops=True)
        sch.set_scope(weights, 0, "local")
        halves, columns, four = sch.get_loops(weights)[-3:]
        columns, lane_in = sch.split(columns, [None, machine.lanes])
        sch.vectorize(sch.fuse(lane_in, four))
        sch.unroll(halves)
        sch.unroll(columns)
    start = sch.decompose_reduction(sums, pair)
    primitives.vectorize_and_unroll(sch, start, below=2, lanes=machine.lanes)
    primitives.vectorize_and_unroll(sch, sch.decompose_reduction(anchor, block), below=1, lanes=machine.lanes)
    tensorize(sch, lane, machine, dot, BYTES, dot.weights, full=True, scope="local" if unpacked else "global")


def schedule_totals(sch: Schedule, machine: Machine) -> None:
    """Leave the loops as they are: they are few, and LLVM knows sums of bytes."""


def dequantize(graph: Graph, call: relax.Call) -> Value | None:
    """Remember rows that are quantized in blocks as what they are; nothing is computed."""
    if not str(call.args[0].name_hint).startswith(DEQUANTIZE_BLOCKS):
        return None
    integers, scales = (graph.plain(graph.look(operand)) for operand in call.args[1].fields)
    return QuantizedBlocks(integers=integers, scales=scales, deferred=Unchanged(call=call))


HANDLERS = {"relax.call_tir": dequantize, "relax.matmul": multiply}
