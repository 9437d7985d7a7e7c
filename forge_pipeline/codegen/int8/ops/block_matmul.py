"""Products of rows that are quantized in blocks by constant weights that are too, of four or eight bits.

Inside a block sums are exact, in int32. They are multiplied by both scales and added up in float32. Weights of four
bits are stored without a sign, two steps to a byte, and taken apart once for a tile of rows. What is taken from weights
so that none is negative comes back by the sum of a row's block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from forge_pipeline.codegen.int8.isa import chain as chains
from forge_pipeline.codegen.int8.isa.dot_product import BYTES, DotProduct, products, tensorize
from forge_pipeline.codegen.int8.isa.table import INSTRUCTION_SETS
from forge_pipeline.codegen.layout.affine import SUM_LIMIT
from forge_pipeline.codegen.layout.builder import Array, Extent, Graph, Unchanged, Value, ints, shape_of
from forge_pipeline.codegen.layout.quantized_values import BlockWeight, QuantizedBlocks
from forge_pipeline.codegen.onnx_import.operators.integers.quantization import DEQUANTIZE_BLOCKS
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.codegen.tir.prefetch import ask_ahead
from forge_pipeline.codegen.tir.tail_tiles import MARGIN, TILES, is_narrow, split_blocks

NAME, TOTALS = "block_matmul", "block_totals"
ROWS, BITS_OF = "forge.rows", "forge.bits"
"""The annotations with the rows of a tile, and the bits of a weight."""

SUMS, PARTS, UNPACKED, TILED = "sums", "parts", "unpacked", "tiles"
"""The names of the blocks that add up products, do so in int16, take weights apart, and copy tiles of rows."""

BITS, NIBBLE, BYTE = 8, 16, 256
"""The bits of a byte, how many numbers four bits hold, and eight."""

VECTORS = 4
"""Vectors in a panel at most."""

CHAINED = 6, 2
"""Rows and vectors of a tile that is added up in chains. Fewer LLVM unrolls, and orders so that each sum waits."""

SIZE = 32
"""Steps that a block is taken to have where threads and caches are considered."""

ROWS_OF_CALLS = (8, 20, 50, 128, 197)
"""Numbers of rows that tiles are chosen for where a call brings them."""

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
    chain: int = 0


def multiply(graph: Graph, call: relax.Call) -> Value | None:
    """Take activations and weights in the same blocks of a row, and of a column."""
    left, weight = graph.look(call.args[0]), graph.look(call.args[1])
    if not isinstance(left, QuantizedBlocks) or not isinstance(weight, BlockWeight) or weight.integers.ndim != 2:
        return None
    *leading, steps = shape_of(left.integers)
    columns, blocks = weight.integers.shape[1], int(shape_of(left.scales)[-1])
    size = steps // blocks
    parted, scales = (array.reshape(blocks, size, columns) for array in (weight.integers, weight.scales))
    lowest, highest = parted.min(axis=1), parted.max(axis=1)
    widest = int((highest - lowest).max())
    bits = BITS // 2 if widest < NIBBLE else BITS
    dot = _dot_product(graph.machine, bits)
    if not leading or dot is None or widest >= BYTE or size % (2 * dot.k_inner) or (scales != scales[:, :1]).any():
        return None
    if size * BYTE * (BYTE + int(abs(lowest).max())) >= SUM_LIMIT:
        return None
    rows = math.prod(leading)
    chain = INSTRUCTION_SETS[graph.machine.dot_product].chain if bits < BITS else None
    vectors, length = -(-columns // graph.machine.lanes), chain.length(size // dot.k_inner) if chain else 0
    if chain and rows != 1:
        mr, nr = (min(rows, CHAINED[0]) if isinstance(rows, int) else CHAINED[0]), min(vectors, CHAINED[1])
    else:
        mr, nr = choose_tile(graph.machine, dot, rows, vectors, size // dot.k_inner)
    form = Form(dot=dot, bits=bits, size=size, rows=mr, columns=columns, chain=length)
    width = nr * graph.machine.lanes
    offset = offsets(lowest, highest, form)
    codes = (parted - offset[:, None].astype(parted.dtype)).reshape(steps, columns).astype(dot.weights)
    operands = [
        left.integers if len(leading) == 1 else graph.emit(relax.op.reshape(left.integers, (rows, steps))),
        left.scales if len(leading) == 1 else graph.emit(relax.op.reshape(left.scales, (rows, blocks))),
        graph.constant(pack(codes, width, form)),
        graph.constant(in_panels(narrowed(scales[:, 0], graph.machine), width)),
    ]
    if offset.any():
        times = int(offset.flat[0]) if offset.size == 1 else 1
        operands.append(graph.kernel(add_up, operands[0], name="add_up", size=size, times=times))
    if offset.size > 1:
        offset = offset.astype(np.min_scalar_type(-1 - int(abs(offset).max())))
        operands.append(graph.constant(in_panels(offset, width)))
    result = graph.kernel(by_panels, *operands, name="dense_blocks", form=form)
    return Value(plain=result if len(leading) == 1 else graph.emit(relax.op.reshape(result, (*leading, columns))))


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


def choose_tile(machine: Machine, dot: DotProduct, rows: Extent, vectors: int, groups: int) -> tuple[int, int]:
    """Return rows and vectors of a tile: sums in int32 and in float32 of all of them are in registers.

    A number of rows that a call brings is taken for any of a few.
    """
    lengths = (rows,) if isinstance(rows, int) else ROWS_OF_CALLS
    best: tuple[float, int, int] | None = None
    for nr in range(1, min(VECTORS, vectors) + 1):
        for mr in range(1, min(max(lengths), machine.registers) + 1):
            if mr > 1 and 2 * mr * nr + nr + dot.scratch >= machine.registers:
                break
            tile = (dot.step_cycles(machine, mr, nr) + nr) * groups + COMBINING * mr * nr / machine.fma_ports
            cycles = sum(-(-length // mr) * tile / length for length in lengths) * -(-vectors // nr)
            if best is None or cycles <= best[0]:
                best = cycles, mr, nr
    assert best is not None  # noqa: S101 - one by one always fits
    return best[1:]


def narrowed(scales: Array, machine: Machine) -> Array:
    """Return scales in half precision where that holds them all, and the machine reads it."""
    with np.errstate(over="ignore"):
        halves = scales.astype(np.float16)
    return halves if machine.reads_halves and np.array_equal(halves, scales) else scales


def add_up(left: te.Tensor, size: int, times: int) -> te.Tensor:
    """Describe the sum of each block of a row, some ``times``."""
    step = te.reduce_axis((0, size), "step")
    rows, steps = left.shape

    def total(row: Any, block: Any) -> Any:
        return te.sum(left(row, block * size + step).astype("int32") * times, axis=[step])

    return te.compute((rows, steps // size), total, name="total", attrs={primitives.FAMILY: TOTALS})


def by_panels(
    left: te.Tensor, factors: te.Tensor, packed: te.Tensor, scales: te.Tensor, *offset: te.Tensor, form: Form
) -> te.Tensor:
    """Describe (rows, steps) times packed weights.

    ``offset``: what the blocks of each row lack, or their sums and what was taken from the weights of each.
    """
    (rows,) = ints(left.shape[:1]) if isinstance(left.shape[0], tirx.IntImm) else left.shape[:1]
    panels, blocks, width = ints(scales.shape)
    k_inner, size, groups = form.dot.k_inner, form.size, form.size // form.dot.k_inner
    whole = -(-rows // form.rows) * form.rows if isinstance(rows, int) else rows
    source = _tiled(left, form.rows, size, form.dot.activation)
    factor_of, *total_of = (_tiled(tensor, form.rows, 1, tensor.dtype) for tensor in (factors, *offset[:1]))
    weights = packed if form.bits == BITS else _unpacked(packed, form.dot.weights)
    group, inner, block = (
        te.reduce_axis((0, extent), name) for extent, name in ((groups, "group"), (k_inner, "inner"), (blocks, "block"))
    )

    def part(row: Any, panel: Any, at: Any, column: Any) -> Any:
        weight = weights(panel, at * groups + group, column, inner)
        return te.sum(products(source(row, at, group * k_inner + inner), weight), axis=[group, inner])

    if form.chain:
        sums = _in_chains(source, weights, (whole, panels, blocks, width), groups, form)
    else:
        sums = te.compute((whole, panels, blocks, width), part, name=SUMS)

    def scaled(row: Any, panel: Any, column: Any) -> Any:
        total = sums(row, panel, block, column)
        if offset:
            lacking = total_of[0](row, block, 0)
            total += lacking * offset[1](panel, block, column).astype("int32") if len(offset) > 1 else lacking
        factor = factor_of(row, block, 0) * scales(panel, block, column).astype("float32")
        return te.sum(total.astype("float32") * factor, axis=[block])

    attributes = {primitives.FAMILY: NAME, ROWS: form.rows, BITS_OF: form.bits}
    product = te.compute((whole, panels, width), scaled, name="product", attrs=attributes)
    return te.compute(
        (rows, form.columns), lambda row, column: product(row, column // width, column % width), name="finish"
    )


def _in_chains(
    source: Callable[[Any, Any, Any], Any], weights: te.Tensor, shape: Sequence[Any], groups: int, form: Form
) -> te.Tensor:
    """Describe the sums of (rows, panels, blocks, columns), made in int16 along chains of steps of each block."""
    links, k_inner, pair = groups // form.chain, form.dot.k_inner, form.dot.k_inner // chains.PAIRS
    group, two = te.reduce_axis((0, form.chain), "group"), te.reduce_axis((0, pair), "two")

    def part(row: Any, panel: Any, at: Any, link: Any, column: Any, half: Any) -> Any:
        step, place = link * form.chain + group, half * pair + two
        weight = weights(panel, at * groups + step, column, place)
        value = source(row, at, step * k_inner + place)
        return te.sum(value.astype("int16") * weight.astype("int16"), axis=[group, two])

    parts = te.compute((*shape[:3], links, shape[3], chains.PAIRS), part, name=PARTS)
    link, half = te.reduce_axis((0, links), "link"), te.reduce_axis((0, chains.PAIRS), "half")

    def total(row: Any, panel: Any, at: Any, column: Any) -> Any:
        return te.sum(parts(row, panel, at, link, column, half).astype("int32"), axis=[link, half])

    return te.compute(shape, total, name=SUMS)


def _tiled(tensor: te.Tensor, tile: int, size: int, dtype: str) -> Callable[[Any, Any, Any], Any]:
    """Describe how numbers of (rows, blocks * size) are read, in another type, by row, block and place in it.

    A tile of rows lies together, the last filled with zeros: rows of 4096 bytes would all be in the same few places of
    the first cache. Of any number of rows, which have tiles anywhere, each block does.
    """
    rows, blocks = tensor.shape[0], int(tensor.shape[1]) // size
    if tile == 1 and tensor.dtype == dtype:
        return lambda row, block, step: tensor(row, block * size + step)

    def element(block: Any, row: Any, step: Any) -> Any:
        return tensor(row, block * size + step).astype(dtype)

    def element_of_tile(at: Any, block: Any, row: Any, step: Any) -> Any:
        found, row = element(block, at * tile + row, step), at * tile + row
        return found if int(rows) % tile == 0 else tirx.if_then_else(row < rows, found, tirx.const(0, dtype))

    if not isinstance(rows, tirx.IntImm):
        by_block = te.compute((blocks, rows, size), element, name=TILED)
        return lambda row, block, step: by_block(block, row, step)
    tiles = te.compute((-(-int(rows) // tile), blocks, tile, size), element_of_tile, name=TILED)
    return lambda row, block, step: tiles(row // tile, block, row % tile, step)


def _unpacked(packed: te.Tensor, dtype: str) -> te.Tensor:
    """Describe numbers of four bits, two to a byte: that of an even step, and above it the next."""
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
    for block in before:
        if sch.get(block).name_hint.startswith(TILED):
            primitives.schedule_elementwise(sch, block, machine)
    m, panel, column, block = sch.get_loops(anchor)
    rows, steps = primitives.extent(sch, m), primitives.static(sch, block)
    is_open = rows is None
    work = primitives.product(
        (rows or primitives.UNKNOWN, primitives.static(sch, panel), primitives.static(sch, column))
    )
    vector, lane = sch.split(column, [None, machine.lanes])
    if is_open:
        mr = 1 if is_narrow(sch) else mr
        m_block, m_out, m_in = split_blocks(sch, m, max(1, machine.l2 // 2 // (steps * SIZE * mr)), mr)
        if mr > 1:
            sch.annotate(m_out, TILES, mr)
        sch.annotate(m_out, MARGIN, mr)
        sch.reorder(m_block, panel, m_out, block, m_in, vector, lane)
        shared, at = sch.fuse(m_block, panel), m_out
    else:
        m_out, m_in = sch.split(m, [None, mr])
        sch.reorder(panel, m_out, block, m_in, vector, lane)
        shared = at = sch.fuse(panel, m_out)
    sch.reverse_compute_at(last, at)
    primitives.parallel_if_worth(sch, shared, work * steps * SIZE)
    if rows == 1:
        ask_ahead(sch, block, machine)
    for loop in (m_in, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    primitives.vectorize_where_filled(sch, last, machine.lanes)
    names = {sch.get(found).name_hint: found for found in before}
    place = _Place(block=block, machine=machine, is_open=is_open)
    if PARTS in names:
        _add_up_in_chains(sch, sums, names[PARTS], names[UNPACKED], place)
    else:
        _add_up_steps(sch, sums, names.get(UNPACKED), place, dot)
    result = sch.decompose_reduction(anchor, block)
    primitives.vectorize_and_unroll(sch, result, below=2 if is_open else 1, lanes=machine.lanes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The loop over blocks of steps, inside of which sums of a tile are made."""

    block: LoopRV
    machine: Machine
    is_open: bool


def _add_up_steps(sch: Schedule, sums: SBlockRV, unpacked: SBlockRV | None, place: _Place, dot: DotProduct) -> None:
    """Add up in int32, two steps in a turn."""
    machine = place.machine
    sch.compute_at(sums, place.block, preserve_unit_loops=True)
    sch.set_scope(sums, 0, "local")
    row, _, _, wide, group, inner = sch.get_loops(sums)[-6:]
    wide, lane = sch.split(wide, [None, machine.lanes])
    pair, half = sch.split(group, [None, 2])
    sch.reorder(pair, half, row, wide, lane, inner)
    for loop in (half, row, wide):
        sch.unroll(loop)
    if unpacked is not None:
        _take_apart(sch, unpacked, pair, machine)
    start = sch.decompose_reduction(sums, pair)
    primitives.vectorize_and_unroll(sch, start, below=3 if place.is_open else 2, lanes=machine.lanes)
    scope = "local" if unpacked is not None else "global"
    tensorize(sch, lane, machine, dot, BYTES, dot.weights, full=True, later=place.is_open, scope=scope)


def _add_up_in_chains(sch: Schedule, sums: SBlockRV, parts: SBlockRV, unpacked: SBlockRV, place: _Place) -> None:
    """Add up in int16, two steps in a turn, and widen what a chain of steps gives."""
    machine = place.machine
    chain = INSTRUCTION_SETS[machine.dot_product].chain
    assert chain is not None  # noqa: S101 - there are parts
    sch.compute_at(sums, place.block, preserve_unit_loops=True)
    row, _, _, wide, link, half = sch.get_loops(sums)[-6:]
    wide, lane = sch.split(wide, [None, machine.lanes])
    sch.reorder(link, row, wide, lane, half)
    sch.compute_at(parts, link, preserve_unit_loops=True)
    row_in, _, _, _, wide_in, half_in, group, two = sch.get_loops(parts)[-8:]
    wide_in, lane_in = sch.split(wide_in, [None, machine.lanes])
    pair, nibble = sch.split(group, [None, 2])
    sch.reorder(pair, nibble, row_in, wide_in, lane_in, half_in, two)
    for block in (sums, parts):
        sch.set_scope(block, 0, "local")
    for loop in (row, wide, nibble, row_in, wide_in):
        sch.unroll(loop)
    _take_apart(sch, unpacked, pair, machine)
    for block, loop in ((parts, pair), (sums, link)):
        start = sch.decompose_reduction(block, loop)
        inner = sch.get_loops(start)[-6:] if block is parts else sch.get_loops(start)[-4:]
        column = 4 if block is parts else 3
        vectors, vector = sch.split(inner[column], [None, machine.lanes])
        sch.vectorize(primitives.fuse(sch, [vector, *inner[column + 1 :]]))
        for each in (*inner[:column], vectors):
            sch.unroll(each)
    for loop, name in zip((lane_in, lane), chains.intrinsics(chain, machine.lanes), strict=True):
        chains.tensorize(sch, loop, name, later=place.is_open)


def _take_apart(sch: Schedule, unpacked: SBlockRV, loop: LoopRV, machine: Machine) -> None:
    """Unpack the weights of two steps once for a tile of rows."""
    sch.compute_at(unpacked, loop, preserve_unit_loops=True)
    sch.set_scope(unpacked, 0, "local")
    halves, columns, four = sch.get_loops(unpacked)[-3:]
    columns, lane = sch.split(columns, [None, machine.lanes])
    sch.vectorize(sch.fuse(lane, four))
    sch.unroll(halves)
    sch.unroll(columns)


def schedule_totals(sch: Schedule, machine: Machine) -> None:
    """Leave the loops as they are: they are few, and LLVM knows sums of bytes."""


def dequantize(graph: Graph, call: relax.Call) -> Value | None:
    """Remember rows that are quantized in blocks as what they are; nothing is computed."""
    if not str(call.args[0].name_hint).startswith(DEQUANTIZE_BLOCKS):
        return None
    integers, scales = (graph.plain(graph.look(operand)) for operand in call.args[1].fields)
    return QuantizedBlocks(integers=integers, scales=scales, deferred=Unchanged(call=call))


HANDLERS = {"relax.call_tir": dequantize, "relax.matmul": multiply}
