"""Weights asked for ahead: tiles that share some weights ask, line by line, for those that come next.

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
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from forge_pipeline.codegen.tir import primitives, rewriting
from forge_pipeline.codegen.tir.edges import last_tiles
from forge_pipeline.codegen.tir.machine import LINE, Machine
from forge_pipeline.codegen.tir.prefetch.reads import FIRST_CACHE, SECOND_CACHE, Read, ask, reads_of, steps_of

ASKS = "forge.asks"
"""The annotation of a loop over tiles: how many tiles, the first of them, share the work."""

SHARED = "forge.asks_shared"
"""The annotation of such a loop whose tiles all share it, as many as a call brings."""

AHEAD = "forge.ahead"
"""The annotation of a loop along which weights are read once, in order."""

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
    read: dict[Any, tuple[int, Read]] = {}
    for realize in rewriting.realizes(steps.body):
        values = dict(zip((axis.var for axis in realize.block.iter_vars), realize.iter_values, strict=True))
        for region in realize.block.reads:
            indices = [rewriting.substitute(part.min, values.get) for part in region.region]
            found = Read(buffer=region.source, indices=indices, loops=loops)
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
            asked.append(ask(found.buffer, [*outer, last + start], FIRST_CACHE))
    return asked


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
        return ask(self.buffer, [*outer, last + offset], SECOND_CACHE)


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
        steps = steps_of(realize, inside)
        for buffer, indices, width in reads_of(realize.block):
            if buffer in weights and steps:
                read = Read(
                    buffer=buffer,
                    indices=[rewriting.substitute(at, values.get) for at in indices],
                    loops=loops,
                    width=width,
                )
                panel = _panel_of(read, tiles, around, inside, steps)
                if panel is not None:
                    return panel
    return None


def _panel_of(
    read: Read, tiles: tirx.For, around: Any, inside: Sequence[tirx.For], steps: Sequence[tirx.For]
) -> _Panel | None:
    """Return the panel that is read, None where it is none: whole vectors, for step after step."""
    if read.moved_by(tiles.loop_var) != 0 or read.moved_by(around) == 0:
        return None
    if not all(isinstance(loop.extent, tirx.IntImm) for loop in steps):
        return None
    moves = [(loop, read.moved_by(loop.loop_var)) for loop in inside]
    lanes = [loop for loop, by in moves if loop.kind == tirx.ForKind.VECTORIZED and by == 1]
    known = {loop.loop_var for loop in (*lanes, *steps)}
    vectors = [(int(loop.extent), by) for loop, by in moves if by != 0 and loop.loop_var not in known]
    if len(lanes) != (read.width is None) or len(vectors) > 1:
        return None
    width, (count, apart) = read.width or int(lanes[0].extent), vectors[0] if vectors else (1, 0)
    step, number = width * count if apart == width else width, 1
    for loop in reversed(steps):
        if read.moved_by(loop.loop_var) != step * number:
            return None
        number *= int(loop.extent)
    if apart is None:
        return None
    run, runs = (number * step, count) if apart > number * step else (number * width * count, 1)
    line = LINE * 8 // DataType(str(read.buffer.ty.dtype)).bits
    first = [_start(at, tiles, around, inside) for at in read.indices]
    lines = -(-run // line)
    return _Panel(buffer=read.buffer, first=first, runs=runs, lines=lines, apart=apart, line=line, steps=steps)


def _start(at: Any, tiles: tirx.For, around: Any, inside: Sequence[tirx.For]) -> Any:
    """Return the index of what the next turn of the loop around the tiles starts with."""
    new = {loop.loop_var: 0 for loop in (tiles, *inside)} | {around: around + 1}
    return rewriting.substitute(at, new.get)
