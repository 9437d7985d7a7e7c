"""Tiles over an extent that is known only when a kernel runs: the last tile is moved back, to end where the others do.

A tile that is cut off needs a test for each of its pixels, and sums that TVM then keeps in memory. One that is moved
back computes a few pixels twice, to the same values, by the same code as all others; where a part of a tile holds what
is left, it is that part. Where the extent is less than a tile, a second version of the kernel takes over, with smaller
tiles, and where it is less than those, one of single pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import SBlockRealize, Schedule
from tvm.s_tir.schedule import LoopRV
from tvm.sym.analyzer import Analyzer

from forge_pipeline.codegen.tir import rewriting
from forge_pipeline.codegen.tir.edges.edge_tiles import with_own_registers
from forge_pipeline.codegen.tir.machine import Machine

TILES = "forge.tiles"
"""The annotation of a loop over tiles: how many pixels each has."""

MARGIN = "forge.margin"
"""The annotation of a loop over tiles that may be computed whole, also beyond what there is: only stores are tested."""

NARROW = "forge.narrow"
"""The attribute of a function that is to be scheduled with tiles of so many pixels at most."""

SMALLER = (4, 1)
"""The most pixels of a tile in versions for less than a tile: as many sums as hide the latency of adding to them, and
those that always fit."""


MOST_TILES, FEW_PARTS = 8, 8
"""What `tiles_of_block` says: 196 pixels by 96 filters are work for two threads. Beside blocks of 32 tiles MobileNetV2
took 0.95 of the time on two threads and 1.00 on one (float32 by AVX-512), and 1.00 by AVX2 and in integers."""


def most_pixels(sch: Schedule, pixels: int) -> int:
    """Return how many pixels a tile of ``pixels`` has in the version that is being scheduled."""
    return min(pixels, int((sch.mod["main"].attrs or {}).get(NARROW, pixels)))


def is_narrow(sch: Schedule) -> bool:
    """Return whether a kernel is being scheduled for less than the smallest tile of several pixels."""
    return most_pixels(sch, SMALLER[0]) == 1


def tiles_of_block(machine: Machine, size: int, parts: Iterable[int | None]) -> int:
    """Return how many tiles of ``size`` bytes a block has that stays in half of the second cache.

    ``parts`` are extents of the loops that threads share with that over blocks. Where the known ones are few turns, a
    block has MOST_TILES at most, so that what is small has blocks for several threads.
    """
    fitting = max(1, machine.l2 // 2 // size)
    return min(MOST_TILES, fitting) if prod(part or 1 for part in parts) < FEW_PARTS else fitting


def split_blocks(sch: Schedule, pixels: LoopRV, tiles: int, tile: int) -> tuple[LoopRV, LoopRV, LoopRV]:
    """Return loops over blocks of ``tiles`` tiles, tiles of ``tile`` pixels, and pixels.

    What is less than a tile is one block: another one's turns would all be tests of whether there is a pixel.
    """
    if is_narrow(sch):
        block, one, pixel = sch.split(pixels, [1, None, 1])
    else:
        block, one, pixel = sch.split(pixels, [None, tiles, tile])
    return block, one, pixel


def _holds_a_tile(extent: Any, tile: int) -> bool:
    """Return whether there is room for a tile in whatever is not empty, as in 95 rows of any width for one of 30."""
    analyzer = Analyzer()
    for variable in tirx.analysis.undefined_vars(extent):
        analyzer.bind(variable, tvm.ir.Range.from_min_extent(tirx.IntImm("int64", 1), tirx.IntImm("int64", 1 << 31)))
    return bool(analyzer.can_prove(extent >= tile))


def _over_tiles(function: tirx.PrimFunc) -> list[tirx.For]:
    return [loop for loop in rewriting.loops(function.body) if TILES in loop.annotations]


def smallest_tile(function: tirx.PrimFunc) -> int:
    """Return the pixels of the smallest tile whose last one may reach too far; 0 where there is none."""
    return min((int(loop.annotations[TILES]) for loop in _over_tiles(function)), default=0)


def choose_version(function: tirx.PrimFunc, smaller: Sequence[tirx.PrimFunc]) -> tirx.PrimFunc:
    """Return ``function``, done by the first of ``smaller`` where there is no room for its tiles."""
    least = {}
    for loop in _over_tiles(function):
        tile, extent = int(loop.annotations[TILES]), _extent(loop)
        if not _holds_a_tile(extent, tile):
            least[str(extent)] = extent >= tile
    if not least:
        return function
    if not smaller:
        raise ValueError("there is no version for less than a tile")
    fits = tirx.all(*least.values()) if len(least) > 1 else next(iter(least.values()))
    return rewriting.either(fits, function, choose_version(smaller[0], smaller[1:]))


def pad_tiles(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``function`` with whole tiles where a margin permits that."""
    larger: dict[Any, Any] = {}

    def widen(loop: tirx.For, mutator: Any) -> Any:
        return _pad_loop(loop, larger) if MARGIN in loop.annotations else mutator.default_mutate(loop)

    body = tvm_ffi.structural_mutate(function.body, [(tirx.For, widen)])
    return function.with_body(rewriting.substitute(body, larger.get)) if larger else function.with_body(body)


def _pad_loop(loop: tirx.For, larger: dict[Any, Any]) -> Any:
    """Return a loop over tiles in which values that stay in registers are computed under no condition.

    ``larger`` gets buffers with room for whole tiles.
    """
    counter, tile = loop.loop_var, int(loop.annotations[MARGIN])
    inside = [inner.loop_var for inner in rewriting.loops(loop.body)]
    outer: dict[str, Any] = {}

    def change(realize: SBlockRealize) -> SBlockRealize:
        target = realize.block.writes[0].source
        is_stored = target.scope() != "local"
        if not is_stored:
            larger.setdefault(target, _with_whole_tiles(realize, counter, tile))
        kept: Any = True
        for condition in rewriting.conjuncts(realize.predicate):
            if not any(rewriting.reads(condition, variable) for variable in (counter, *inside)):
                outer[str(condition)] = condition
            elif is_stored:
                kept = condition if kept is True else tirx.And(kept, condition)
        return s_tir.SBlockRealize(realize.iter_values, kept, realize.block)

    body = rewriting.map_realizes(loop.body, change)
    result: Any = tirx.For(counter, loop.min, loop.extent, loop.kind, body, annotations=loop.annotations)
    for condition in outer.values():
        result = tirx.IfThenElse(condition, result, None)
    return result


def even_blocks(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``function`` whose blocks have as many tiles each, where the last one had what the others left.

    Threads share blocks by their number. Of 512 rows in blocks of 336 one thread had two thirds.
    """

    def level(loop: tirx.For, mutator: Any) -> Any:
        is_block = isinstance(loop.extent, tirx.IntImm) and int(loop.extent) > 1
        return _in_even_blocks(loop) if TILES in loop.annotations and is_block else mutator.default_mutate(loop)

    return function.with_body(tvm_ffi.structural_mutate(function.body, [(tirx.For, level)]))


def even_share(extent: Any, most: int, unit: int, least: int = 1) -> Any:
    """Return how many units of ``unit`` elements each of an extent's blocks has, all as many or the last one fewer.

    Blocks are as few as have ``most`` elements, but ``least``.
    """
    one = tirx.const(1, extent.ty.dtype)
    blocks = tirx.max(tirx.floordiv(extent + (most - 1), most), one * least)
    return tirx.floordiv(tirx.max(extent, one) + (blocks * unit - 1), blocks * unit)


def _in_even_blocks(loop: tirx.For) -> tirx.For:
    """Return a loop over a block's tiles of which there are no more blocks than before. Tests stay: they go later."""
    tile, counter, extent, analyzer = int(loop.annotations[TILES]), loop.loop_var, _extent(loop), Analyzer()
    full = int(loop.extent) * tile
    tiles = analyzer.simplify(even_share(extent, full, tile))
    inside = [inner.loop_var for inner in rewriting.loops(loop.body)]

    def move(realize: SBlockRealize) -> SBlockRealize:
        values = [moved(value) if rewriting.reads(value, counter) else value for value in realize.iter_values]
        return s_tir.SBlockRealize(values, realize.predicate, realize.block)

    def moved(value: Any) -> Any:
        first = rewriting.at_zero(value, [counter, *inside])
        block = analyzer.simplify(tirx.floordiv(first, full))
        if not analyzer.can_prove_equal(first, block * full):
            raise ValueError(f"{first} is where no block of {full} pixels begins")
        return block * (tiles * tile) + analyzer.simplify(value - first)

    body = rewriting.map_realizes(loop.body, move)
    return tirx.For(counter, loop.min, tiles, loop.kind, body, annotations=loop.annotations)


def bound_tiles(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``function`` without those tiles of ``pad_tiles`` that have no pixel at all."""

    def bound(loop: tirx.For, mutator: Any) -> Any:
        if MARGIN not in loop.annotations:
            return mutator.default_mutate(loop)
        tile, realize = int(loop.annotations[MARGIN]), rewriting.realizes(loop)[0]
        (value,) = (value for value in realize.iter_values if rewriting.reads(value, loop.loop_var))
        first = rewriting.at_zero(value, [inner.loop_var for inner in rewriting.loops(loop)])
        tiles = tirx.min(loop.extent, tirx.floordiv(_extent(loop) - first + (tile - 1), tile))
        notes = {name: note for name, note in loop.annotations.items() if name != MARGIN}
        tiles = Analyzer().simplify(tiles)
        return tirx.For(loop.loop_var, loop.min, tiles, loop.kind, loop.body, annotations=notes)

    return function.with_body(tvm_ffi.structural_mutate(function.body, [(tirx.For, bound)]))


def _with_whole_tiles(realize: SBlockRealize, counter: Any, tile: int) -> Any:
    """Return the buffer that a block writes with room for whole tiles along the axis that ``counter`` moves along."""
    (region,) = realize.block.writes
    moved = [
        axis.var
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        if rewriting.reads(value, counter)
    ]
    shape = [
        (extent + (tile - 1)) // tile * tile if any(rewriting.reads(part.min, axis) for axis in moved) else extent
        for extent, part in zip(region.source.ty.shape, region.region, strict=True)
    ]
    buffer = region.source
    return tirx.decl_buffer(shape, str(buffer.ty.dtype), buffer.name, scope=buffer.scope())


def _extent(loop: tirx.For) -> Any:
    """Return the extent that a loop's tiles are cut from."""
    for realize in rewriting.realizes(loop):
        for variable, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            if rewriting.reads(value, loop.loop_var):
                return variable.dom.extent
    raise ValueError("no block in the loop over tiles depends on it")


def shift_tiles(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``function`` with its last tiles moved back: right where there are as many pixels as a tile has."""
    buffers: list[Any] = []

    def shift(loop: tirx.For, mutator: Any) -> Any:
        return _shift_loop(loop, buffers) if TILES in loop.annotations else mutator.default_mutate(loop)

    body = tvm_ffi.structural_mutate(function.body, [(tirx.For, shift)])
    return rewriting.with_buffers(function.with_body(body), buffers)


def _shift_loop(loop: tirx.For, buffers: list[Any]) -> Any:
    """Return a loop over tiles whose last turn is moved back; it has fewer pixels where they hold the rest.

    Tests that no longer need be inside are around it. ``buffers`` gets the registers of what is less than a tile.
    """
    tile, counter, simplify = int(loop.annotations[TILES]), loop.loop_var, Analyzer().simplify
    shifted = _moved_back(loop, tile)
    tiles = simplify(tirx.min(loop.extent, tirx.floordiv(shifted.rest + (tile - 1), tile)))
    parts = [] if isinstance(loop.extent, tirx.IntImm) and int(loop.extent) == 1 else _parts(tile)
    shorter = {pixels: own for pixels in parts if (own := _shortened(loop, pixels)) is not None}
    most = max(shorter, default=0)
    whole = simplify(tirx.min(loop.extent, tirx.floordiv(shifted.rest + (tile - 1 - most), tile)))
    result: Any = tirx.For(counter, loop.min, whole, loop.kind, shifted.body, annotations=dict(loop.annotations))
    last: Any = None
    for pixels, own in sorted(shorter.items(), reverse=True):
        end = rewriting.substitute(_moved_back(own, pixels).body, {counter: whole}.get)
        end = with_own_registers(end, buffers)
        last = end if last is None else tirx.IfThenElse(shifted.rest - whole * tile <= pixels, end, last)
    if last is not None:
        result = tirx.SeqStmt([result, tirx.IfThenElse(whole < tiles, last, None)])
    for condition in shifted.conditions:
        result = tirx.IfThenElse(condition, result, None)
    return result


def _parts(tile: int) -> list[int]:
    """Return how many pixels less than ``tile`` the last tile may have.

    Behind a single tile of four it would wait for the weights that this asked for: two rows took longer than four.
    """
    return sorted({-(-tile * quarter // 4) for quarter in (1, 2, 3)}) if tile > SMALLER[0] else []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shifted:
    """What a turn of a loop over tiles does, the tests around it, and the pixels there are from the first tile on."""

    body: Any
    conditions: Sequence[Any]
    rest: Any


def _moved_back(loop: tirx.For, tile: int) -> _Shifted:
    """Return tiles of which none reaches beyond the last pixel."""
    extent, counter, analyzer = _extent(loop), loop.loop_var, Analyzer()
    inside = [inner.loop_var for inner in rewriting.loops(loop.body)]
    outer: dict[str, Any] = {}
    starts: dict[str, Any] = {}

    def move(realize: SBlockRealize) -> SBlockRealize:
        values = []
        for value in realize.iter_values:
            if not rewriting.reads(value, counter):
                values.append(value)
                continue
            start = analyzer.simplify(rewriting.at_zero(value, inside))
            starts[str(start)] = start
            values.append(tirx.min(start, extent - tile) + analyzer.simplify(value - start))
        kept: Any = True
        for condition in rewriting.conjuncts(realize.predicate):
            if rewriting.reads(condition, counter):
                continue
            if any(rewriting.reads(condition, variable) for variable in inside):
                if realize.block.writes[0].source.scope() == "local":
                    raise ValueError(f"the condition {condition} is inside of a tile")
                kept = condition if kept is True else tirx.And(kept, condition)
            else:
                outer[str(condition)] = condition
        return s_tir.SBlockRealize(values, kept, realize.block)

    body = rewriting.map_realizes(loop.body, move)
    (start,) = starts.values()
    return _Shifted(body=body, conditions=list(outer.values()), rest=extent - rewriting.at_zero(start, [counter]))


def _shortened(loop: tirx.For, pixels: int) -> tirx.For | None:
    """Return a loop whose tiles have fewer pixels, None where they are no loop of their own in one of its blocks."""
    tile, counter, analyzer = int(loop.annotations[TILES]), loop.loop_var, Analyzer()
    inner = rewriting.loops(loop.body)
    inside = [each.loop_var for each in inner]
    whole = {each.loop_var for each in inner if isinstance(each.extent, tirx.IntImm) and int(each.extent) == tile}
    found = set()
    for realize in rewriting.realizes(loop):
        for value in realize.iter_values:
            if rewriting.reads(value, counter):
                found.add(analyzer.simplify(value - rewriting.at_zero(value, inside)))
    if not found <= whole:
        return None
    return cast("tirx.For", rewriting.with_extents(loop, dict.fromkeys(found, pixels)))
