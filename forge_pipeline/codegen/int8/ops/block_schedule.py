"""The loops of products of blocks (`block_matmul`): a tile of rows by a panel in registers, along all blocks."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from forge_pipeline.codegen.int8.isa import chain as chains
from forge_pipeline.codegen.int8.isa.dot_product import BYTES, DotProduct, tensorize
from forge_pipeline.codegen.int8.isa.table import INSTRUCTION_SETS
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.edges.tail_tiles import MARGIN, TILES, most_pixels, split_blocks, tiles_of_block
from forge_pipeline.codegen.tir.elementwise_blocks import schedule_elementwise
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.codegen.tir.prefetch.weights import ask_ahead

NAME = "block_matmul"
ROWS, BITS_OF = "forge.rows", "forge.bits"
"""The annotations with the rows of a tile, and the bits of a weight."""

SUMS, PARTS, UNPACKED, TILED = "sums", "parts", "unpacked", "tiles"
"""The names of the blocks that add up products, do so in int16, take weights apart, and copy tiles of rows."""

BITS = 8
"""The bits of a byte."""

SIZE = 32
"""Steps that a block is taken to have where threads and caches are considered."""


def dot_product(machine: Machine, bits: int) -> DotProduct | None:
    """Return what a machine has for weights of four bits or eight."""
    isa = INSTRUCTION_SETS.get(machine.dot_product)
    return None if isa is None else isa.signed if bits == BITS else isa.nibbles


def schedule(sch: Schedule, machine: Machine) -> None:
    """Hold a tile of rows by a panel in registers along all blocks."""
    anchor = primitives.find(sch, NAME)
    mr, bits = (int(sch.get(anchor).annotations[name]) for name in (ROWS, BITS_OF))
    dot = dot_product(machine, bits)
    assert dot is not None  # noqa: S101 - there is a product
    before, last = primitives.split_around(sch, anchor)
    sums = next(block for block in before if sch.get(block).name_hint == SUMS)
    for block in before:
        if sch.get(block).name_hint.startswith(TILED):
            schedule_elementwise(sch, block, machine)
    m, panel, column, block = sch.get_loops(anchor)
    rows, steps = primitives.extent(sch, m), primitives.static(sch, block)
    is_open = rows is None
    work = primitives.product(
        (rows or primitives.UNKNOWN, primitives.static(sch, panel), primitives.static(sch, column))
    )
    vector, lane = sch.split(column, [None, machine.lanes])
    if is_open:
        mr = most_pixels(sch, mr)
        tiles = tiles_of_block(machine, steps * SIZE * mr, [primitives.extent(sch, panel)])
        m_block, m_out, m_in = split_blocks(sch, m, tiles, mr)
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
