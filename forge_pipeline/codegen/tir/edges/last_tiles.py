"""The last tile of a row, where it has fewer results than the others, is code of its own.

TVM's loop partitioning does that too, but not for loops in which weights are asked for ahead (`prefetch`), nor where
each of several blocks of rows has such a tile: tests in the innermost loop had all tiles spill their operands, for the
sake of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Range
from tvm.s_tir import SBlockRealize, Schedule
from tvm.s_tir.schedule import LoopRV
from tvm.sym.analyzer import Analyzer

from forge_pipeline.codegen.tir import rewriting
from forge_pipeline.codegen.tir.edges.edge_tiles import with_own_registers

ROW = "forge.row_of_tiles"
"""The annotation of a loop over tiles of which the last may be smaller."""


def mark(sch: Schedule, tiles: LoopRV) -> None:
    """Mark a loop over tiles for `part`."""
    sch.annotate(tiles, ROW, True)


def part(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel whose tiles in marked loops are whole, but for the last of a row."""
    buffers: list[Any] = []
    around = [loop for loop in rewriting.loops(function.body) if isinstance(loop.extent, tirx.IntImm)]

    def split(loop: tirx.For, mutator: Any) -> Any:
        inner = mutator.default_mutate(loop)
        if ROW not in loop.annotations:
            return inner
        notes = {name: note for name, note in inner.annotations.items() if name != ROW}
        inner = tirx.For(inner.loop_var, inner.min, inner.extent, inner.kind, inner.body, annotations=notes)
        found = _parted(inner, around, buffers)
        return inner if found is None else found

    body = tvm_ffi.structural_mutate(function.body, [(tirx.For, split)])
    return rewriting.with_buffers(function.with_body(body), buffers)


def _parted(loop: tirx.For, around: Sequence[tirx.For], buffers: list[Any]) -> Any | None:
    """Return the whole tiles of a loop and the last one, None where it has no such tiles; ``around`` has all loops."""
    tests = [test for realize in rewriting.realizes(loop) for test in _tests(realize, loop.loop_var)]
    if not tests or not isinstance(loop.extent, tirx.IntImm) or int(loop.extent) == 1:
        return None
    last, inner = int(loop.extent) - 1, rewriting.loops(loop.body)
    if not _always_hold(tests, [*around, *inner], {loop.loop_var: last}):
        return None
    at_last = [rewriting.substitute(test, {loop.loop_var: last}.get) for test in tests]
    rests = _rests(at_last, around, inner)
    if rests is None:
        return None

    body = rewriting.map_realizes(loop.body, lambda realize: _without(realize, loop.loop_var))
    end = rewriting.substitute(body, {loop.loop_var: last}.get)
    end = with_own_registers(rewriting.with_extents(end, rests), buffers)
    whole = tirx.For(loop.loop_var, loop.min, last, loop.kind, body, annotations=dict(loop.annotations))
    return tirx.SeqStmt([whole, end])


def _tests(realize: SBlockRealize, counter: Any) -> list[Any]:
    return [test for test in rewriting.conjuncts(realize.predicate) if rewriting.reads(test, counter)]


def _always_hold(tests: Sequence[Any], loops: Sequence[tirx.For], turns: Mapping[Any, int]) -> bool:
    """Return whether the tests hold in all turns of ``loops``, of some of them in the first ``turns``."""
    analyzer = Analyzer()
    for loop in loops:
        extent = turns.get(loop.loop_var, loop.extent)
        analyzer.bind(loop.loop_var, Range.from_min_extent(loop.min, extent), allow_override=True)
    return all(analyzer.can_prove(test) for test in tests)


def _rests(tests: Sequence[Any], around: Sequence[tirx.For], inner: Sequence[tirx.For]) -> dict[Any, int] | None:
    """Return the turns that each loop of the last tile has, by the variable; None where tests say no number.

    A loop that stores what another one computed is tested against the end of the whole: of what is computed.
    """
    found: dict[Any, int] = {}
    later = []
    for test in map(Analyzer().simplify, tests):
        if isinstance(test, tirx.LT) and isinstance(test.a, tirx.Var) and isinstance(test.b, tirx.IntImm):
            found[test.a] = int(test.b)
        else:
            later.append(test)
    counts = set(found.values())
    for test in later:
        tested = [loop for loop in inner if rewriting.reads(test, loop.loop_var)]
        if len(tested) != 1 or len(counts) != 1:
            return None
        (count,), variable = counts, tested[0].loop_var
        others = [loop for loop in around if not loop.loop_var.same_as(variable)]
        if not _always_hold([rewriting.substitute(test, {variable: count - 1}.get)], others, {}):
            return None
        found[variable] = count
    return found


def _without(realize: SBlockRealize, counter: Any) -> SBlockRealize:
    kept: Any = True
    for test in rewriting.conjuncts(realize.predicate):
        if not rewriting.reads(test, counter):
            kept = test if kept is True else tirx.And(kept, test)
    return s_tir.SBlockRealize(realize.iter_values, kept, realize.block)
