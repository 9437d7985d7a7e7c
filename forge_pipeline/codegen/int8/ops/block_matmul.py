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

from forge_pipeline.codegen.int8.isa import chain as chains
from forge_pipeline.codegen.int8.isa.dot_product import DotProduct, products
from forge_pipeline.codegen.int8.isa.table import INSTRUCTION_SETS
from forge_pipeline.codegen.int8.ops.block_schedule import (
    BITS,
    BITS_OF,
    NAME,
    PARTS,
    ROWS,
    SUMS,
    TILED,
    UNPACKED,
    dot_product,
)
from forge_pipeline.codegen.layout.affine import SUM_LIMIT
from forge_pipeline.codegen.layout.builder import Array, Extent, Graph, Unchanged, Value, ints, shape_of
from forge_pipeline.codegen.layout.quantized_values import BlockWeight, QuantizedBlocks
from forge_pipeline.codegen.onnx_import.operators.integers.quantization import DEQUANTIZE_BLOCKS
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine

TOTALS = "block_totals"

NIBBLE, BYTE = 16, 256
"""How many numbers four bits hold, and eight."""

VECTORS = 4
"""Vectors in a panel at most."""

CHAINED = 6, 2
"""Rows and vectors of a tile that is added up in chains. Fewer LLVM unrolls, and orders so that each sum waits."""

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
    dot = dot_product(graph.machine, bits)
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
        mr, nr = choose_tile(graph.machine, dot, rows, vectors, size // dot.k_inner, steps)
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


def choose_tile(
    machine: Machine, dot: DotProduct, rows: Extent, vectors: int, groups: int, apart: int
) -> tuple[int, int]:
    """Return rows and vectors of a tile: sums in int32 and in float32 of all of them are in registers.

    A number of rows that a call brings is taken for any of a few; they are ``apart`` bytes from each other.
    """
    lengths = (rows,) if isinstance(rows, int) else ROWS_OF_CALLS
    best: tuple[float, int, int] | None = None
    for nr in range(1, min(VECTORS, vectors) + 1):
        for mr in range(1, min(max(lengths), machine.registers) + 1):
            if mr > 1 and 2 * mr * nr + nr + dot.scratch >= machine.registers:
                break
            step = dot.step_cycles(machine, mr, nr) + machine.conflict_cycles(mr, apart)
            tile = (step + nr) * groups + COMBINING * mr * nr / machine.fma_ports
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


def dequantize(graph: Graph, call: relax.Call) -> Value | None:
    """Remember rows that are quantized in blocks as what they are; nothing is computed."""
    if not str(call.args[0].name_hint).startswith(DEQUANTIZE_BLOCKS):
        return None
    integers, scales = (graph.plain(graph.look(operand)) for operand in call.args[1].fields)
    return QuantizedBlocks(integers=integers, scales=scales, deferred=Unchanged(call=call))


HANDLERS = {"relax.call_tir": dequantize, "relax.matmul": multiply}
