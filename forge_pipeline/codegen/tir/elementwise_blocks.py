"""Blocks that compute each element by itself: vectors along rows, threads over rows, tiles where axes are exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import DataType, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.sym import Analyzer, detect_linear_equation

from forge_pipeline.codegen.tir import open_rows, rewriting, transposed_tiles
from forge_pipeline.codegen.tir.broadcasting import is_one
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.codegen.tir.peel_padding import EDGES, is_decided_along
from forge_pipeline.codegen.tir.primitives import (
    PAD,
    SERIAL_WORK,
    extent,
    family_of,
    fuse,
    fuse_where_provable,
    is_costly,
    is_data_movement,
    is_select,
    parallel_if_worth,
    parallel_outside,
    product,
    static,
    vectorize_and_unroll,
    work_of,
)

LONG_ROW = 4
"""Vectors in a row beside which a division is little: CamemBERT of any batch took 0.99 of its time on two threads."""

GATHERED_BITS = 32
"""Bits of the smallest numbers that gathers of vectors take."""


def pad_at(sch: Schedule, before: Sequence[SBlockRV], loop: LoopRV | None, machine: Machine) -> None:
    """Copy a padded image where ``loop`` reads it, if there is one; all other blocks go by themselves."""
    for block in before:
        if loop is not None and family_of(sch, block) == PAD:
            sch.compute_at(block, loop)
            vectorize_and_unroll(sch, block, below=100, lanes=machine.lanes)
        else:
            schedule_elementwise(sch, block, machine)


def _share_tiles(sch: Schedule, block: SBlockRV, outer: Sequence[LoopRV], tiles: LoopRV | None, work: int) -> None:
    """Share out the loops around a copy that exchanges axes, or its tiles where those loops are a batch's alone."""
    turns, inner = ([extent(sch, loop) for loop in loops] for loops in (outer, sch.get_loops(block)[-2:]))
    is_large = work_of([1, *inner]) >= SERIAL_WORK
    if tiles is not None and is_large and set(turns) <= {1, None} and turns.count(None) <= 1:
        sch.annotate(tiles, transposed_tiles.THREADS, 1)
    elif outer:
        parallel_if_worth(sch, fuse_where_provable(sch, outer), work)


def schedule_elementwise(sch: Schedule, block: SBlockRV, machine: Machine) -> None:
    """Schedule an elementwise block: vectors along the innermost axis, threads over the others."""
    transposed_tiles.part_last(sch, block)
    loops = sch.get_loops(block)
    lanes = machine.lanes
    extents = [extent(sch, loop) for loop in loops]
    if not loops or 0 in extents:
        return
    gathers_bytes = _gathers_bytes(sch.get(block))
    if None in extents or gathers_bytes:
        while len(loops) > 1 and extents[-1] == 1:  # a row of one, with each place found by divisions
            loops, extents = [*loops[:-2], sch.fuse(*loops[-2:])], extents[:-1]
    work = work_of(extents)
    if len(loops) > 1 and extents[-1] != lanes and is_decided_along(sch.get(block), len(loops) - 1):
        sch.annotate(block, EDGES, len(loops) - 1)
        parallel_if_worth(sch, fuse_where_provable(sch, loops[:-1]), work)
        return
    transposed = transposed_tiles.transpose(sch, block, machine) if not is_select(sch, block) else None
    if transposed is not None:
        _share_tiles(sch, block, *transposed, work)
        return
    last = extents[-1]
    if gathers_bytes:  # in vectors each place would be taken out of one
        if len(loops) > 1:
            parallel_if_worth(sch, fuse_where_provable(sch, loops[:-1]), work)
        return
    if last is not None and last % lanes == 0 and (len(loops) > 1 or _moves_vectors(sch.get(block), lanes)):
        inner = loops[-1]
        if last > lanes:
            _, inner = sch.split(inner, [None, lanes])
        sch.vectorize(inner)
        outer = sch.get_loops(block)[:-1]
        outer = outer if last <= lanes else outer[:-1]
        if None in extents[1:] and last < LONG_ROW * lanes and any(extent(sch, loop) != 1 for loop in outer[:-1]):
            outer = outer[:-1]  # to tell pixels apart in a fused loop takes a division by their number in a row
        if outer or last > lanes:
            parallel_if_worth(sch, fuse_where_provable(sch, outer or sch.get_loops(block)[:-1]), work)
        return
    if None in extents:
        rest, inner = loops[:-1], loops[-1]
        if not is_select(sch, block):
            if last is not None:
                vectorize_short_row(sch, inner, lanes)
            elif is_costly(sch, block) or open_rows.chooses(sch, block) or open_rows.is_long(sch, block):
                open_rows.vectorize(sch, inner, lanes)
                parallel_outside(sch, rest, machine, work)
                return
        if rest:
            parallel_if_worth(sch, fuse_where_provable(sch, rest), work)
        return
    if work < lanes:
        return
    if len(loops) > 1 and is_data_movement(sch, block):  # rows are LLVM's to vectorize
        parallel_if_worth(sch, fuse(sch, loops[:-1]), work)
        return
    inner = _row_of(extents, _in_order(sch, block), lanes)
    if inner < len(loops):
        rows, row = fuse(sch, loops[:-inner]), fuse(sch, loops[-inner:])
        if inner == 1 and static(sch, row) >= 4 * lanes and not is_select(sch, block):
            open_rows.vectorize(sch, row, lanes)
        else:
            vectorize_short_row(sch, row, lanes)
        parallel_if_worth(sch, rows, work)
        return
    flat = fuse(sch, loops)
    if work >= SERIAL_WORK:
        parts = max(count for count in range(1, 4 * machine.cores + 1) if work % count == 0)
        sch.parallel(sch.split(flat, [parts, None])[0])


def _gathers_bytes(block: Any) -> bool:
    """Return whether a block reads numbers of less than 32 bits, for which there are no gathers, at places it reads."""
    axes = [axis.var for axis in block.iter_vars if not is_one(axis.dom.extent)]
    if not axes:
        return False

    def is_read(index: Any) -> bool:
        return any(rewriting.reads(list(load.indices), axes[-1]) for load in rewriting.loads(index))

    narrow = [load for load in rewriting.loads(block.body) if DataType(str(load.source.ty.dtype)).bits < GATHERED_BITS]
    return any(is_read(index) for load in narrow for index in load.indices)


def vectorize_short_row(sch: Schedule, row: LoopRV, lanes: int) -> None:
    """Make vectors of what is too short for LLVM's: it does four at once, and one by one what is left over."""
    length = static(sch, row)
    if lanes // 4 <= length <= 4 * lanes:
        sch.vectorize(row)
    elif 4 * lanes < length < 16 * lanes:
        width = max(width for width in range(1, 4 * lanes + 1) if length % width == 0)
        if width >= lanes:
            sch.vectorize(sch.split(row, [None, width])[1])


def _moves_vectors(block: Any, lanes: int) -> bool:
    """Return whether a block of one axis reads vectors in even steps, from other places than it writes them to."""
    if len(block.iter_vars) != 1:
        return False
    axis = block.iter_vars[0].var
    loads = rewriting.loads(block.body)
    turn, lane = (tirx.Var(name, axis.ty.dtype) for name in ("turn", "lane"))
    analyzer = Analyzer()
    analyzer.bind(turn, tvm.ir.Range(0, 1 << 31))
    analyzer.bind(lane, tvm.ir.Range(0, lanes))

    def placed(load: Any, at: Any) -> Any:
        place = rewriting.address(load.indices, load.source)
        return rewriting.substitute(place, lambda seen: at if seen.same_as(axis) else None)

    def is_even(load: Any) -> bool:
        """Return whether each lane's number lies as far behind the one before."""
        distance = analyzer.simplify(placed(load, turn * lanes + lane) - placed(load, turn * lanes))
        return len(detect_linear_equation(distance, [lane])) == 2

    moved = [load for load in loads if rewriting.reads(list(load.indices), axis)]
    is_in_order = all(len(load.indices) == 1 and load.indices[0].same_as(axis) for load in moved)
    return not is_in_order and all(map(is_even, moved))


def _row_of(extents: Sequence[int | None], most: int, lanes: int) -> int:
    """Return how many of the innermost loops are a row: no more than it takes for some vectors.

    Where all of them are one loop, parts of it for threads end anywhere. TVM finds places by divisions then, which it
    does not see to be one after the other.
    """
    return next((count for count in range(1, most) if product(extents[-count:]) >= 4 * lanes), most)


def _in_order(sch: Schedule, block: SBlockRV) -> int:
    """Return how many of the innermost loops read what they read as it lies in memory, one after the other; or not.

    They are one loop to LLVM, which makes vectors of it whatever its length.
    """
    axes = [variable.var for variable in sch.get(block).iter_vars]
    lengths = [extent(sch, loop) for loop in sch.get_loops(block)]
    regions = [*sch.get(block).reads, *sch.get(block).writes]

    def fits(region: Any, count: int) -> bool:
        places = [item.min for item in region.region]
        last = zip(places[-count:], axes[-count:], region.source.ty.shape[-count:], lengths[-count:], strict=False)
        in_order = len(places) >= count and all(
            place.same_as(axis) and size == length for place, axis, size, length in last
        )
        return in_order or not any(rewriting.reads(place, axis) for place in places for axis in axes[-count:])

    counts = [count for count in range(2, len(axes) + 1) if all(fits(region, count) for region in regions)]
    return max(counts, default=1)
