"""Weights, and pixels, asked for ahead: tiles that share some weights ask, line by line, for those that come next.

Tiles of one panel read it from the second cache, many times, and arithmetic hides that. The next panel lies behind that
cache, in memory for a model of any size, and the CPU's own prefetcher starts anew with each of them: the first tile of
a panel would wait for every few lines. So each tile fetches its share of the next panel into the second cache while it
computes, a few lines before its innermost steps, or in each of them. An address behind the last panel is harmless: a
prefetch does not fault.

A tile that is the only one to read its weights asks, as it goes, for what comes a little later: a CPU that computes
between two loads has fewer of them on the way than memory could bring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import DataType, tirx
from tvm.s_tir import SBlockRealize, Schedule
from tvm.s_tir.schedule import LoopRV
from tvm.sym.analyzer import Analyzer

from forge_pipeline.codegen.tir import primitives, rewriting
from forge_pipeline.codegen.tir.edges import last_tiles
from forge_pipeline.codegen.tir.machine import LINE, Machine

ASKS = "forge.asks"
"""The annotation of a loop over tiles: how many tiles, the first of them, share the work."""

SHARED = "forge.asks_shared"
"""The annotation of such a loop whose tiles all share it, as many as a call brings."""

AHEAD = "forge.ahead"
"""The annotation of a loop along which weights are read once, in order."""

PIXELS = "forge.asks_pixels"
"""The annotation of a loop over blocks of channels: a tile's pixels of a later block are asked for."""

BLOCKS_AHEAD = 2
"""Blocks of channels between a tile's steps and those whose pixels it asks for: one block's steps are shorter than the
way from the third cache (0.74 of the peak instead of 0.90, Zen 5)."""

DISTANCE = 2048
"""Bytes that are asked for ahead: what memory brings while one line is on its way (measured on a Zen 3)."""

TYPICAL = 4
"""The tiles that an open extent is taken for: with fewer, the CPU asks for the rest as it would have for all."""

FEWEST_ROWS = 4
"""Rows, or pixels, of bytes whose products take as long as their weights take to come: two that ask for the next took
1.4 times as long (Zen 4)."""

AT_ONCE = 4
"""Lines that are asked for together, before the innermost steps; more would wait for each other. Fewer are rather not
asked for in each step, where telling which takes as long as a part of the arithmetic."""

FRACTION = 16
"""Bits behind the point of the lines that a step asks for, where a call brings the number of tiles."""

READ, SECOND_CACHE, FIRST_CACHE, DATA = 0, 2, 3, 1
"""What `llvm.prefetch` is told."""


def ask_for_next(
    sch: Schedule, tiles: LoopRV, machine: Machine, most: int | None = None, *, shared: bool = False
) -> None:
    """Mark a loop over tiles that read the same weights, of which the loop around it brings the next with each turn.

    ``most``: how many tiles a call with few has, where it decides. Those behind them are code of their own, without
    prefetches; or, with ``shared``, each asks for a smaller share. On x86 only: on AArch64 LLVM then no longer loads in
    pairs.
    """
    if machine.arch == "x86_64":
        sch.annotate(tiles, ASKS, most or primitives.extent(sch, tiles) or TYPICAL)
        if shared:
            sch.annotate(tiles, SHARED, True)
        last_tiles.mark(sch, tiles)


def ask_ahead(sch: Schedule, steps: LoopRV, machine: Machine) -> None:
    """Mark a loop that reads weights, with all loops around it, once and in order. On x86 only, as above."""
    if machine.arch == "x86_64":
        sch.annotate(steps, AHEAD, True)


def ask_for_pixels(sch: Schedule, blocks: LoopRV, machine: Machine) -> None:
    """Mark a loop over blocks of channels, from each of which a tile reads pixels; they lie far from the next block's.

    The first steps of a block would wait for all pixels at once, where they come from behind the second cache: no
    prefetcher of the CPU knows where the next block begins. 2176 channels of 28 x 56 pixels to 64 took twice as long
    (Zen 5). On x86 only, as above, and where a pixel is a line: by AVX2, fewer lines gained nothing.
    """
    if machine.arch == "x86_64" and machine.lanes * machine.item >= LINE:
        sch.annotate(blocks, PIXELS, True)


def prefetch_weights(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``function`` with prefetches in the loops over steps of the tiles that are marked."""
    nests = sorted(((loop, rewriting.loops(loop.body)) for loop in rewriting.loops(function.body)), key=_depth)
    if not any({ASKS, AHEAD} & set(loop.annotations) for loop, _ in nests):
        return function
    around = {inner.loop_var: loop.loop_var for loop, inside in reversed(nests) for inner in inside}
    weights = set(function.params)

    def mutate(loop: tirx.For, mutator: Any) -> Any:
        notes = {name: note for name, note in loop.annotations.items() if name not in (ASKS, SHARED, AHEAD)}
        if AHEAD in loop.annotations:
            body = tirx.SeqStmt([*_asked_ahead(loop, around.get(loop.loop_var), weights), loop.body])
            return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=notes)
        if ASKS not in loop.annotations:
            return mutator.default_mutate(loop)
        panel = _panel(loop, around.get(loop.loop_var), weights)
        body = loop.body if panel is None else panel.asked_for_in(loop)
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=notes)

    return function.with_body(tvm_ffi.structural_mutate(function.body, [(tirx.For, mutate)]))


def _depth(nest: tuple[tirx.For, list[tirx.For]]) -> int:
    return len(nest[1])


def _asked_ahead(steps: tirx.For, around: Any, weights: set[Any]) -> list[tirx.Evaluate]:
    """Return prefetches of what a later turn of a loop reads of weights, which the loop around it moves along, too."""
    inside = rewriting.loops(steps.body)
    if around is None:
        return []
    loops = frozenset({around, steps.loop_var, *(loop.loop_var for loop in inside)})
    read: dict[Any, tuple[int, _Read]] = {}
    for realize in rewriting.realizes(steps.body):
        values = dict(zip((axis.var for axis in realize.block.iter_vars), realize.iter_values, strict=True))
        for region in realize.block.reads:
            indices = [rewriting.substitute(part.min, values.get) for part in region.region]
            found = _Read(buffer=region.source, indices=indices, loops=loops)
            if region.source in weights and found.moved_by(around) != 0:
                bits = DataType(str(region.source.ty.dtype)).bits
                read[region.source] = (found.moved_by(steps.loop_var) or 0) * bits // 8, found
    turns = -(-DISTANCE // max((size for size, _ in read.values()), default=DISTANCE))
    zero = {loop.loop_var: 0 for loop in inside} | {steps.loop_var: steps.loop_var + turns}
    asked = []
    for size, found in read.values():
        *outer, last = (rewriting.substitute(at, zero.get) for at in found.indices)
        line = LINE * 8 // DataType(str(found.buffer.ty.dtype)).bits
        for start in range(0, -(-size // LINE) * line, line):
            asked.append(_asked(found.buffer, [*outer, last + start], FIRST_CACHE))
    return asked


def prefetch_pixels(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``function`` with prefetches in the marked loops over blocks of channels."""

    def mutate(loop: tirx.For, mutator: Any) -> Any:
        if PIXELS not in loop.annotations:
            return mutator.default_mutate(loop)
        notes = {name: note for name, note in loop.annotations.items() if name != PIXELS}
        body = tirx.SeqStmt([*_asked_pixels(loop), loop.body])
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=notes)

    return function.with_body(tvm_ffi.structural_mutate(function.body, [(tirx.For, mutate)]))


def _asked_pixels(blocks: tirx.For) -> list[tirx.Evaluate]:
    """Return prefetches of the pixels that a later turn of a loop over blocks of channels begins with."""
    inside = rewriting.loops(blocks.body)
    loops = frozenset({blocks.loop_var, *(loop.loop_var for loop in inside)})
    for realize in rewriting.realizes(blocks.body):
        values = dict(zip((axis.var for axis in realize.block.iter_vars), realize.iter_values, strict=True))
        steps = [loop.loop_var for loop in _steps(realize, inside)]
        for buffer, indices, _ in _reads(realize.block):
            read = _Read(buffer=buffer, indices=[rewriting.substitute(at, values.get) for at in indices], loops=loops)
            moved = [loop for loop in inside if read.moved_by(loop.loop_var) != 0 and loop.loop_var not in steps]
            if read.moved_by(blocks.loop_var) == 0 or [loop.kind for loop in moved] != [tirx.ForKind.UNROLLED]:
                continue  # weights, whose vectors are moved along by lanes, or sums
            (pixels,) = moved
            start = {loop.loop_var: 0 for loop in inside} | {blocks.loop_var: blocks.loop_var + BLOCKS_AHEAD}
            places = [start | {pixels.loop_var: pixel} for pixel in range(int(pixels.extent))]
            return [
                _asked(buffer, [rewriting.substitute(at, place.get) for at in read.indices], FIRST_CACHE)
                for place in places
            ]
    return []


def _asked(buffer: Any, indices: Sequence[Any], cache: int) -> tirx.Evaluate:
    """Return a prefetch of an element's line."""
    address = tirx.address_of(tirx.BufferLoad(buffer, indices))
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", address, READ, cache, DATA))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """Weights that a tile reads: ``runs`` of ``lines``, ``apart`` elements from one to the next.

    ``first`` is the next panel's first element, ``line`` the elements of a line; ``steps`` are the loops over them.
    """

    buffer: Any
    first: Sequence[Any]
    runs: int
    lines: int
    apart: int
    line: int
    steps: Sequence[tirx.For]

    def asked_for_in(self, tiles: tirx.For) -> Any:
        """Return the body of the loop over tiles, with this panel's share asked for before or in innermost steps."""
        number, few = self.runs * self.lines, int(tiles.annotations[ASKS])
        is_known = isinstance(tiles.extent, tirx.IntImm)
        few = min(few, int(tiles.extent)) if is_known else few
        turned = self.steps[:-1]
        if not turned or number > AT_ONCE * few * _turns(turned):
            turned = self.steps
        step: Any = tiles.loop_var
        for loop in turned:
            step = step * loop.extent + loop.loop_var
        turns = few * _turns(turned)
        count = tiles.extent if SHARED in tiles.annotations and not is_known else None
        if count is None:
            first = tirx.floordiv(step * number, turns)
        else:  # a division of its own, before the tiles, and none in a step
            share = tirx.floordiv(number << FRACTION, tirx.max(count, few) * _turns(turned))
            first = tirx.shift_right(step * share, tirx.IntImm("int64", FRACTION))
        lines = (first + index for index in range(-(-number // turns)))
        asked = [self._ask(tirx.min(line, number - 1)) for line in lines]

        def asking(loop: tirx.For, mutator: Any) -> Any:
            if not loop.loop_var.same_as(turned[-1].loop_var):
                return mutator.default_mutate(loop)
            body = tirx.SeqStmt([*asked, loop.body])
            return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=loop.annotations)

        def first_tiles(loop: tirx.For, mutator: Any) -> Any:
            if not loop.loop_var.same_as(self.steps[0].loop_var):
                return mutator.default_mutate(loop)
            asks = tvm_ffi.structural_mutate(loop, [(tirx.For, asking)])
            return tirx.IfThenElse(tiles.loop_var < tiles.annotations[ASKS], asks, rewriting.clone(loop))

        ask_all = count is not None or (is_known and few >= int(tiles.extent))
        return tvm_ffi.structural_mutate(tiles.body, [(tirx.For, asking if ask_all else first_tiles)])

    def _ask(self, line: Any) -> tirx.Evaluate:
        offset = line * self.line
        if self.runs > 1:
            run, within = tirx.floordiv(line, self.lines), tirx.floormod(line, self.lines)
            offset = run * self.apart + within * self.line
        *outer, last = self.first
        return _asked(self.buffer, [*outer, last + offset], SECOND_CACHE)


def _turns(loops: Sequence[tirx.For]) -> int:
    return primitives.product(int(loop.extent) for loop in loops)


def _panel(tiles: tirx.For, around: Any, weights: set[Any]) -> _Panel | None:
    """Return what the tiles of a loop ask for; None where they read no weights that the loop around it changes."""
    if around is None:
        return None
    inside = rewriting.loops(tiles.body)
    loops = frozenset({around, tiles.loop_var, *(loop.loop_var for loop in inside)})
    for realize in rewriting.realizes(tiles.body):
        values = dict(zip((axis.var for axis in realize.block.iter_vars), realize.iter_values, strict=True))
        steps = _steps(realize, inside)
        for buffer, indices, width in _reads(realize.block):
            if buffer in weights and steps:
                read = _Read(
                    buffer=buffer,
                    indices=[rewriting.substitute(at, values.get) for at in indices],
                    loops=loops,
                    width=width,
                )
                panel = read.panel(tiles, around, inside, steps)
                if panel is not None:
                    return panel
    return None


def _steps(realize: SBlockRealize, inside: Sequence[tirx.For]) -> list[tirx.For]:
    """Return the loops over what a block sums, outermost first."""
    summed = [
        value
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        if int(axis.iter_type) == primitives.REDUCTION
    ]
    found = [loop for loop in inside if any(rewriting.reads(value, loop.loop_var) for value in summed)]
    return sorted(found, key=lambda loop: -len(rewriting.loops(loop.body)))


def _reads(block: Any) -> list[tuple[Any, Sequence[Any], int | None]]:
    """Return what a block reads, where, and how many elements side by side where an instruction reads them at once."""
    found: list[tuple[Any, Sequence[Any], int | None]] = [
        (load.source, load.indices, None) for load in rewriting.loads(block.body)
    ]
    for matched in block.match_buffers:
        extents = [part.extent for part in matched.source.region]
        if all(isinstance(extent, tirx.IntImm) for extent in extents):
            width = primitives.product(map(int, extents))
            found.append((matched.source.source, [part.min for part in matched.source.region], width))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What a block in a tile reads: where, by the variables of the ``loops`` in the tile and of the two around it.

    ``width``: elements that are read at once; None where a loop over lanes says that.
    """

    buffer: Any
    indices: Sequence[Any]
    loops: frozenset[Any]
    width: int | None = None

    def panel(
        self, tiles: tirx.For, around: Any, inside: Sequence[tirx.For], steps: Sequence[tirx.For]
    ) -> _Panel | None:
        """Return the panel that this reads, None where it is none: whole vectors, for step after step."""
        if self.moved_by(tiles.loop_var) != 0 or self.moved_by(around) == 0:
            return None
        if not all(isinstance(loop.extent, tirx.IntImm) for loop in steps):
            return None
        moves = [(loop, self.moved_by(loop.loop_var)) for loop in inside]
        lanes = [loop for loop, by in moves if loop.kind == tirx.ForKind.VECTORIZED and by == 1]
        known = {loop.loop_var for loop in (*lanes, *steps)}
        vectors = [(int(loop.extent), by) for loop, by in moves if by != 0 and loop.loop_var not in known]
        if len(lanes) != (self.width is None) or len(vectors) > 1:
            return None
        width, (count, apart) = self.width or int(lanes[0].extent), vectors[0] if vectors else (1, 0)
        step, number = width * count if apart == width else width, 1
        for loop in reversed(steps):
            if self.moved_by(loop.loop_var) != step * number:
                return None
            number *= int(loop.extent)
        if apart is None:
            return None
        run, runs = (number * step, count) if apart > number * step else (number * width * count, 1)
        line = LINE * 8 // DataType(str(self.buffer.ty.dtype)).bits
        first = [self._start(at, tiles, around, inside) for at in self.indices]
        lines = -(-run // line)
        return _Panel(buffer=self.buffer, first=first, runs=runs, lines=lines, apart=apart, line=line, steps=steps)

    def _start(self, at: Any, tiles: tirx.For, around: Any, inside: Sequence[tirx.For]) -> Any:
        """Return the index of what the next turn of the loop around the tiles starts with."""
        new = {loop.loop_var: 0 for loop in (tiles, *inside)} | {around: around + 1}
        return rewriting.substitute(at, new.get)

    def moved_by(self, variable: Any) -> int | None:
        """Return how many elements on a loop's second turn reads; None where that is no number."""
        first, second = (self._offset(variable, at) for at in (0, 1))
        distance = Analyzer().simplify(second - first)
        return int(distance) if isinstance(distance, tirx.IntImm) else None

    def _offset(self, variable: Any, place: int) -> Any:
        places, offset = dict.fromkeys(self.loops, 0) | {variable: place}, tirx.IntImm("int64", 0)
        for at, extent in zip(self.indices, self.buffer.ty.shape, strict=True):
            offset = offset * extent + rewriting.substitute(at, places.get)
        return offset
