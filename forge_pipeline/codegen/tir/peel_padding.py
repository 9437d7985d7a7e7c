"""Rows without tests in their loops: what is before an image's row, the row, and what is behind it.

A padded copy chooses for each pixel between the image and what is outside, a concatenation among its parts. Which of
them it is changes at few places along a row: the loop becomes one for each stretch, and a condition on the row as such
is decided before them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer, ConstIntBound, detect_clip_bound, detect_linear_equation

from forge_pipeline.codegen.tir import rewriting

EDGES = "forge.edges"
"""The annotation of a block that chooses values by `if_then_else`: the axis along a row."""

MOST_LOOPS = 64
"""Loops that one may become."""

MOST = 1 << 40
"""No extent is as large."""


def is_decided_along(block: Any, axis: int) -> bool:
    """Return whether a block chooses its values, each under a condition that changes at few places along an axis."""
    choices: list[Any] = []
    along = block.iter_vars[axis].var
    tvm_ffi.structural_walk(block.body, [(Call, lambda call: choices.append(call) if _is_choice(call) else None)])
    conditions = [item for choice in choices for item in rewriting.conjuncts(choice.args[0])]
    found = (detect_clip_bound(item, [along]) for item in conditions if rewriting.reads(item, along))
    return bool(choices) and all(len(bounds) == 2 for bounds in found)


def _is_choice(call: Any) -> bool:
    return str(getattr(call.op, "name", "")) == rewriting.CHOICE


def peel(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel whose marked blocks test for the edges once in a row, not once for each pixel."""

    def peel(loop: tirx.For, mutator: Any) -> Any:
        realizes = rewriting.realizes(loop)
        if len(realizes) == 1 and EDGES in realizes[0].block.annotations:
            return _Peel().peeled(loop) or mutator.default_mutate(loop)
        return mutator.default_mutate(loop)

    body = tvm_ffi.structural_mutate(function.body, [(tirx.For, peel)])
    return function.with_body(body)


def _is_along(realize: SBlockRealize, axis: int, loop: tirx.For) -> bool:
    """Return whether ``loop`` goes along an axis; what else its place hangs on is the same for all of the row."""
    linear = detect_linear_equation(realize.iter_values[axis], [loop.loop_var])
    if len(linear) != 2 or not isinstance(linear[0], tirx.IntImm) or int(linear[0]) != 1:
        return False
    extents = realize.block.writes[0].source.ty.shape  # a margin may leave TVM's region begin at an expression of them
    known = [variable for extent in extents for variable in rewriting.variables(extent)]
    return all(any(item.same_as(one) for one in known) for item in rewriting.variables(linear[1]))


def _conditions(value: Any) -> list[Any]:
    """Return the conditions of the outermost choices in a value."""
    found: list[Any] = []

    def note(call: Any, mutator: Any) -> Any:
        if not _is_choice(call):
            return mutator.default_mutate(call)
        found.append(call.args[0])
        return call

    tvm_ffi.structural_mutate(value, [(Call, note)])
    return found


def _chosen(value: Any, condition: Any, which: int) -> Any:
    """Return a value with the first (1) or the second (2) of what its choices under a condition are between."""

    def choose(call: Any, mutator: Any) -> Any:
        if _is_choice(call) and tvm_ffi.structural_equal(call.args[0], condition):
            return call.args[which]
        return mutator.default_mutate(call)

    return tvm_ffi.structural_mutate(value, [(Call, choose)])


@dataclass(slots=True)
class _Peel:
    """The loops that one becomes, counted."""

    loops: int = 1

    def peeled(self, loop: tirx.For) -> Any:
        """Return what a loop becomes, or None for one that is not along a row, or without a condition to be decided."""
        (realize,) = rewriting.realizes(loop)
        axis = int(realize.block.annotations[EDGES])
        if not _is_along(realize, axis, loop):
            return None
        for condition in _conditions(realize.block.body.value):
            edges = _edges(loop, realize, axis, condition)
            if edges is not None and self.loops + 2 <= MOST_LOOPS:
                self.loops += 2
                return self._parts(loop, realize, axis, condition, edges)
        return None

    def _parts(self, loop: tirx.For, realize: SBlockRealize, axis: int, condition: Any, edges: tuple[Any, ...]) -> Any:
        """Return the loops before, within and behind what a condition holds for."""
        first, begin, end, stop = edges
        along = realize.block.iter_vars[axis].var
        rows = [item for item in rewriting.conjuncts(condition) if not rewriting.reads(item, along)]
        outer = [item for item in rewriting.conjuncts(realize.predicate) if not rewriting.reads(item, loop.loop_var)]

        def part(start: Any, until: Any, which: int) -> list[Any]:
            count = Analyzer().simplify(until - start)
            if isinstance(count, tirx.IntImm) and not int(count):
                return []
            counter = tirx.Var("along", loop.loop_var.ty.dtype)

            def changed(old: SBlockRealize) -> SBlockRealize:
                content = _chosen(old.block.body.value, condition, which)
                return rewriting.with_value(old, axis, counter + start, content)

            body = rewriting.map_realizes(rewriting.clone(loop.body), changed)
            made = tirx.For(counter, 0, count, tirx.ForKind.SERIAL, body)
            return [self.peeled(made) or made]

        within = part(first, begin, 2) + part(begin, end, 1) + part(end, stop, 2)
        result: Any = tirx.SeqStmt(within) if len(within) > 1 else within[0]
        if rows:
            bound = dict(zip((item.var for item in realize.block.iter_vars), realize.iter_values, strict=True))
            holds = rewriting.substitute(tirx.all(*rows) if len(rows) > 1 else rows[0], bound.get)
            # As a number: TVM asks of conditions what they say of the loops, and fails where fused ones are open.
            holds = tirx.Cast("int32", holds) != tirx.const(0, "int32")
            result = tirx.IfThenElse(holds, result, part(first, stop, 2)[0])
        for item in outer:
            result = tirx.IfThenElse(item, result, None)
        return result


def _edges(loop: tirx.For, realize: SBlockRealize, axis: int, condition: Any) -> tuple[Any, ...] | None:
    """Return where a loop begins along its axis, where a condition begins and ceases to hold, and where it ends."""
    along = realize.block.iter_vars[axis].var
    analyzer = Analyzer()
    for extent in (extent for region in realize.block.reads for extent in region.source.ty.shape):
        for variable in rewriting.variables(extent):
            analyzer.update(variable, ConstIntBound(0, MOST))
    offset = analyzer.simplify(realize.iter_values[axis] - loop.loop_var)
    bounded = [item for item in rewriting.conjuncts(realize.predicate) if rewriting.reads(item, loop.loop_var)]
    chosen = [item for item in rewriting.conjuncts(condition) if rewriting.reads(item, along)]
    span = _within(bounded, loop.loop_var, loop.min, loop.min + loop.extent - 1)
    if span is None:
        return None
    first, stop = (analyzer.simplify(place + offset) for place in (span[0], span[1] + 1))
    holds = _within(chosen, along, first, stop - 1)
    if holds is None:
        return None
    least, most = holds
    begin = analyzer.simplify(tirx.min(least, stop))
    edges = (first, begin, analyzer.simplify(tirx.max(most + 1, begin)), stop)
    bound = dict(zip((item.var for item in realize.block.iter_vars), realize.iter_values, strict=True))
    return tuple(rewriting.substitute(place, bound.get) for place in edges)


def _within(conditions: list[Any], variable: Any, least: Any, most: Any) -> tuple[Any, Any] | None:
    """Return the least and the most that a variable may be for all conditions to hold; None where that is not clear."""
    for item in conditions:
        found = detect_clip_bound(item, [variable])
        if len(found) != 2:
            return None
        low, high = found
        least = least if low is None else tirx.max(least, low)
        most = most if high is None else tirx.min(most, high)
    return least, most
