"""Copies that exchange axes, tile by tile in registers: vectors of what is read become vectors of what is written.

A tile of n rows of n numbers is transposed by taking numbers of its first half and of its second half in turns, which
moves the highest bit of each number's place to the lowest one; after log2(n) times rows and columns have changed
places. LLVM has one instruction for each of these vectors. The last tiles are moved back to end with their axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import tvm_ffi
from tvm import DataType, s_tir, tirx
from tvm.ir import Range, TensorLoad
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.sym import Analyzer, detect_linear_equation

from forge_pipeline.codegen.tir import rewriting
from forge_pipeline.codegen.tir.broadcasting import is_one
from forge_pipeline.codegen.tir.joined_axes import along, crosses, steps_of
from forge_pipeline.codegen.tir.machine import LINE, Machine

TILE = "forge.transposed"
"""The annotation of a loop along what is read, around one along what is written: how many rows a tile has."""

THREADS = "forge.transposed_threads"
"""The annotation of such a loop whose tiles threads share, as those around it have one turn."""

SHARED = 16
"""Turns of a loop that are enough for threads; an open number is taken for as many."""

LEAST = 4
"""Rows of the smallest tiles, also for open sizes that have no room for a large one: 64 x 4 to 64 x 15 rows of 200
numbers took 0.43 to 0.62 of the time of plain loops (Zen 5)."""

KINDS = ("float32", "int32", "uint32", "float16")
BYTES = ("uint8", "int8")
BYTE_ROWS = 16
"""Rows of a tile of bytes at most: it is as many registers of 16 bytes, which all CPUs have."""


def transpose(sch: Schedule, block: SBlockRV, machine: Machine) -> tuple[list[LoopRV], LoopRV | None] | None:
    """Mark the loops of a copy that reads along another axis than it writes; None where it is no such copy.

    Return the loops around them, and the one whose tiles threads may share.

    A last axis that is shorter than a tile is left to LLVM, which takes some vectors' numbers in turns.
    """
    loops, found = sch.get_loops(block), _read_along(sch, block)
    if len(loops) != len(sch.get(block).iter_vars) or found is None:
        return None
    index, part = found
    lengths = [part or sch.get(loops[index]).extent, sch.get(loops[-1]).extent]
    known = [int(length) for length in lengths if isinstance(length, tirx.IntImm | int)]
    lanes = BYTE_ROWS if str(sch.get(block).writes[0].source.ty.dtype) in BYTES else machine.lanes
    rows = next((count for count in (lanes, 8, LEAST) if count <= min([lanes, *known])), 0)
    is_short = not rows and isinstance(lengths[1], tirx.IntImm) and 1 < int(lengths[1]) < LEAST
    if not rows and not is_short:
        return None
    outer = [loop for place, loop in enumerate(loops[:-1]) if place != index]
    inner = loops[index]
    if part is not None:
        around, inner = sch.split(inner, [None, part])
        outer.insert(index, around)
    sch.reorder(*outer, inner, loops[-1])
    if is_short:
        sch.unroll(loops[-1])
        return outer, None
    sch.annotate(inner, TILE, rows)
    return outer, inner


def part_last(sch: Schedule, block: SBlockRV) -> None:
    """Make two axes of the last where a part of it is read as an axis: each tile is of one part, then.

    Neighbours on it may come from a few rows in turns, as a pixel shuffle has it, or a part of them from as many rows.
    """
    axes = sch.get(block).iter_vars
    if not axes:
        return
    last, analyzer = axes[-1], _knowing((axis.var, axis.dom) for axis in axes)
    counts: set[int] = set()
    is_across = False
    for region in sch.get(block).reads:
        places = [analyzer.simplify(place) for place in _stepping(region.source, [item.min for item in region.region])]
        found = [_turns(place, last.var) for place in places]
        counts.update(*found)
        is_across |= any(found[:-1]) and not found[-1]
    extent = last.dom.extent
    if len(counts) != 1 or not isinstance(extent, tirx.IntImm):
        return
    (count,) = counts
    if (count <= LEAST or is_across) and int(extent) % count == 0 and count < int(extent):
        parted = tirx.IndexMap.from_func(lambda *at: (*at[:-1], at[-1] // count, at[-1] % count), ndim=len(axes))
        sch.transform_block_layout(block, parted)


def _turns(place: Any, variable: Any) -> set[int]:
    """Return after how many numbers of a variable a place is the same again, each that it is taken apart by."""
    turns: set[int] = set()

    def look(node: tirx.FloorMod) -> None:
        if node.a.same_as(variable) and isinstance(node.b, tirx.IntImm):
            turns.add(int(node.b))

    tvm_ffi.structural_walk(place, [(tirx.FloorMod, look)])
    return turns


def _read_along(sch: Schedule, block: SBlockRV) -> tuple[int, int | None] | None:
    """Return the axis along which a block reads tensors, not the last, and the size of a block of it where it is one.

    None where what it reads lies as what it writes.
    """
    regions = [*sch.get(block).reads, *sch.get(block).writes]
    kinds = {str(region.source.ty.dtype) for region in regions}
    if not (kinds <= set(KINDS) or (len(kinds) == 1 and kinds <= set(BYTES))):
        return None
    axes = list(sch.get(block).iter_vars)
    found = [seen for region in sch.get(block).reads if (seen := _exchange(region, axes)) is not None]
    if len(set(found)) != 1:
        return None
    index, part = found[0]
    if index is None or (part is not None and not _has_whole(axes[index].dom.extent, part)):
        return None
    return index, part


def _exchange(region: Any, axes: Sequence[Any]) -> tuple[int | None, int | None] | None:
    """Return the axis along which a region is read, if it is one, and the size of a block; None where it is the last.

    Where a region's address is no sum of steps on each axis, its places tell.
    """
    analyzer, read = _knowing((axis.var, axis.dom) for axis in axes), [item.min for item in region.region]
    steps = steps_of(read, region.source, axes)
    if steps is not None:
        return (along(steps), None) if crosses(steps[-2]) else None
    places = [analyzer.simplify(place) for place in _stepping(region.source, read)]
    if rewriting.reads(places[-1], axes[-1].var) or not any(rewriting.reads(place, axes[-1].var) for place in places):
        return None
    place, part = places[-1], None
    if isinstance(place, tirx.FloorMod) and isinstance(place.b, tirx.IntImm):
        place, part = place.a, int(place.b)
    return next((number for number, axis in enumerate(axes[:-1]) if place.same_as(axis.var)), None), part


def _has_whole(extent: Any, part: int) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) % part == 0


def transpose_tiles(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel whose marked loops go from tile to tile."""
    buffers: list[Any] = []

    def mutate(loop: tirx.For, mutator: Any) -> Any:
        if TILE not in loop.annotations:
            return mutator.default_mutate(loop)
        return _by_tiles(loop, int(loop.annotations[TILE]), buffers) or loop

    body = tvm_ffi.structural_mutate(function.body, [(tirx.For, mutate)])
    if not buffers:
        return function
    root = body.block
    owned, notes = [*root.alloc_buffers, *buffers], root.annotations
    block = s_tir.SBlock([], [], [], root.name_hint, root.body, alloc_buffers=owned, annotations=notes)
    return function.with_body(s_tir.SBlockRealize([], True, block))


def _by_tiles(loop: tirx.For, rows: int, buffers: list[Any]) -> Any:
    """Return the loops over the tiles of so many rows; None where the block is not what it seemed to be."""
    row, realize = loop.body, getattr(loop.body, "body", None)
    if not isinstance(row, tirx.For) or not isinstance(realize, s_tir.SBlockRealize):
        return None
    if rewriting.conjuncts(realize.predicate) or not isinstance(realize.block.body, tirx.BufferStore):
        return None
    bound = dict(zip((axis.var for axis in realize.block.iter_vars), realize.iter_values, strict=True))
    own = _simplified(realize.block.body, ((axis.var, axis.dom) for axis in realize.block.iter_vars))
    ranges = ((each.loop_var, Range.from_min_extent(each.min, each.extent)) for each in (loop, row))
    store = _simplified(rewriting.substitute(own, bound.get), ranges)
    reads = rewriting.loads(store.value)
    across: list[Any] = []
    for load in reads:
        if _is_read_across(load, row.loop_var) and not any(tvm_ffi.structural_equal(load, seen) for seen in across):
            across.append(load)
    if not across or not all(_is_next(load, loop.loop_var) for load in across):
        return None
    stages = [[_local(load, rows, stage) for stage in range(rows.bit_length())] for load in across]
    buffers += [stage for own in stages for stage in own]
    width = loop.loop_var.ty.dtype

    def at(tree: Any, along: Any, place: Any) -> Any:
        names = {loop.loop_var: along, row.loop_var: place}
        return rewriting.substitute(tree, lambda seen: next((n for v, n in names.items() if seen.same_as(v)), None))

    count = min(_beside(load, row.extent, rows) for load in across)
    tile, turn, beside = (tirx.Var(name, width) for name in ("tile", "turn", "beside"))
    first = tirx.min(turn * rows, loop.extent - rows) + loop.min
    start = tirx.min((tile * count + beside) * rows, row.extent - rows) + row.min
    steps: list[Any] = []
    for load, own in zip(across, stages, strict=True):
        for number in range(rows):
            lane = tirx.Var("lane", width)
            value = tirx.BufferStore(own[0], at(load, first + lane, start + number), [number * rows + lane])
            steps.append(tirx.For(lane, 0, rows, tirx.ForKind.VECTORIZED, value))
        for source, made in pairwise(own):
            steps += _take_turns(source, made, rows)
    for number in range(rows):
        lane = tirx.Var("lane", width)
        value = store.value
        for load, own in zip(across, stages, strict=True):
            value = _replaced(value, load, tirx.BufferLoad(own[-1], [number * rows + lane]))
        places = [at(place, first + number, start + lane) for place in store.indices]
        content = tirx.BufferStore(store.buffer, at(value, first + number, start + lane), places)
        steps.append(tirx.For(lane, 0, rows, tirx.ForKind.VECTORIZED, content))
    whole = tirx.For(beside, 0, count, tirx.ForKind.SERIAL, tirx.SeqStmt(steps))
    turns = [(tile, _up(row.extent, rows * count)), (turn, _up(loop.extent, rows))]
    is_shared = THREADS in loop.annotations
    kind = tirx.ForKind.PARALLEL if is_shared else tirx.ForKind.SERIAL
    if is_shared and _count(turns[0][1]) < min(SHARED, _count(turns[1][1])):
        turns.reverse()
    (outer, outer_count), (inner, inner_count) = turns
    tiles = tirx.For(outer, 0, outer_count, kind, tirx.For(inner, 0, inner_count, tirx.ForKind.SERIAL, whole))
    enough = Analyzer().simplify(tirx.all(loop.extent >= rows, row.extent >= rows))
    if isinstance(enough, tirx.IntImm):
        return tiles if int(enough) else None
    smaller = _by_tiles(rewriting.clone(loop), LEAST, buffers) if rows > LEAST else None
    plain = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, row)
    return tirx.IfThenElse(enough, tiles, smaller or plain)


def _beside(load: Any, extent: Any, rows: int) -> int:
    """Return how many tiles beside each other are written before those below: they fill lines of the cache together.

    Rows that lie a multiple of a page apart share few lines, which are gone before the next tile fills its part.
    """
    wide = max(LINE // (rows * DataType(str(load.source.ty.dtype)).bits // 8), 1)
    return wide if isinstance(extent, tirx.IntImm) and int(extent) % (wide * rows) == 0 else 1


def _stepping(source: Any, places: Sequence[Any]) -> list[Any]:
    """Return places without last ones that are always zero, as a row's mean has one: the one before steps by one."""
    count = len(places)
    while count > 1 and isinstance(source.ty.shape[count - 1], tirx.IntImm) and int(source.ty.shape[count - 1]) == 1:
        count -= 1
    return list(places[:count])


def _knowing(ranges: Iterable[tuple[Any, Range]]) -> Analyzer:
    analyzer = Analyzer()
    for variable, values in ranges:
        analyzer.bind(variable, values)
    return analyzer


def _simplified(store: Any, ranges: Iterable[tuple[Any, Range]]) -> Any:
    """Return a store whose places are as simple as what is known of variables makes them."""
    analyzer = _knowing(ranges)

    def simpler(load: Any, mutator: Any) -> Any:
        changed = mutator.default_mutate(load)
        return tirx.BufferLoad(changed.source, [analyzer.simplify(place) for place in changed.indices])

    value = tvm_ffi.structural_mutate(store.value, [(TensorLoad, simpler)])
    return tirx.BufferStore(store.buffer, value, [analyzer.simplify(place) for place in store.indices])


def _up(extent: Any, rows: int) -> Any:
    return Analyzer().simplify((extent + (rows - 1)) // rows)


def _count(turns: Any) -> int:
    return int(turns) if isinstance(turns, tirx.IntImm) else SHARED


def _is_next(load: Any, variable: Any) -> bool:
    """Return whether a load's place grows by one with a variable."""
    step = _step(load, variable)
    return step is not None and is_one(step)


def _is_read_across(load: Any, variable: Any) -> bool:
    """Return whether neighbours along a variable lie apart."""
    step = _step(load, variable)
    if step is not None:
        return crosses(step)
    return any(rewriting.reads(place, variable) for place in _stepping(load.source, load.indices)[:-1])


def _step(load: Any, variable: Any) -> Any | None:
    """Return how far apart neighbours along a variable lie; None where that varies."""
    linear = detect_linear_equation(rewriting.address(load.indices, load.source), [variable])
    return linear[0] if linear else None


def _local(load: Any, rows: int, stage: int) -> Any:
    return tirx.decl_buffer((rows * rows,), str(load.source.ty.dtype), f"tile{stage}", scope="local")


def _take_turns(source: Any, made: Any, rows: int) -> list[Any]:
    """Return the stores of numbers of the first half of the rows and of the second in turns."""
    half, steps = rows // 2, []
    for number in range(half):
        pair = [tirx.BufferLoad(source, [tirx.Ramp(row * rows, 1, rows)]) for row in (number, number + half)]
        for part in range(2):
            order = [place for lane in range(half) for place in (part * half + lane, rows + part * half + lane)]
            target = [tirx.Ramp((2 * number + part) * rows, 1, rows)]
            steps.append(tirx.BufferStore(made, tirx.Shuffle(pair, order), target))
    return steps


def _replaced(value: Any, load: Any, found: Any) -> Any:
    """Return a value with another in place of what is loaded."""

    def replace(seen: Any, mutator: Any) -> Any:
        return found if tvm_ffi.structural_equal(seen, load) else mutator.default_mutate(seen)

    return tvm_ffi.structural_mutate(value, [(TensorLoad, replace)])
