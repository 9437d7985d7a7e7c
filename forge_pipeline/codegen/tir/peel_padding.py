"""Rows without tests in their loops: what is before an image's row, the row, and what is behind it.

A padded copy chooses for each pixel between the image and what is outside. Which of them it is changes twice along a
row: the loop becomes three, and a condition on the row as such is decided before them.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer, ConstIntBound, detect_clip_bound, detect_linear_equation

from forge_pipeline.codegen.tir import rewriting

EDGES = "forge.edges"
"""The annotation of a block that chooses values by `if_then_else` under one condition: the axis along a row."""

MOST = 1 << 40
"""No extent is as large."""


def peel(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel whose marked blocks test for the edges once in a row, not once for each pixel."""

    def peel(loop: tirx.For, mutator: Any) -> Any:
        realizes = rewriting.realizes(loop)
        if len(realizes) == 1 and EDGES in realizes[0].block.annotations:
            peeled = _peel(loop, realizes[0])
            if peeled is not None:
                return peeled
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
        if call.op.name != "prim.if_then_else":
            return mutator.default_mutate(call)
        found.append(call.args[0])
        return call

    tvm_ffi.structural_mutate(value, [(Call, note)])
    return found


def _chosen(value: Any, which: int) -> Any:
    """Return a value with the first (1) or the second (2) of what its outermost choices are between."""

    def choose(call: Any, mutator: Any) -> Any:
        return call.args[which] if call.op.name == "prim.if_then_else" else mutator.default_mutate(call)

    return tvm_ffi.structural_mutate(value, [(Call, choose)])


def _peel(loop: tirx.For, realize: SBlockRealize) -> Any:
    """Return the loops, or None for a loop that is not along a row, or not under one condition."""
    block, axis = realize.block, int(realize.block.annotations[EDGES])
    found = _conditions(block.body.value)
    if not found or not _is_along(realize, axis, loop):
        return None
    if not all(tvm_ffi.structural_equal(condition, found[0]) for condition in found):
        return None
    along, conditions = block.iter_vars[axis].var, rewriting.conjuncts(found[0])
    rows = [item for item in conditions if not rewriting.reads(item, along)]
    outer = [item for item in rewriting.conjuncts(realize.predicate) if not rewriting.reads(item, loop.loop_var)]
    bound = dict(zip((item.var for item in block.iter_vars), realize.iter_values, strict=True))
    edges = _edges(realize, axis, [item for item in conditions if rewriting.reads(item, along)])
    if edges is None:
        return None
    begin, end, width = (rewriting.substitute(place, bound.get) for place in edges)

    def part(first: Any, count: Any, chosen: int) -> list[Any]:
        if isinstance(count, tirx.IntImm) and not int(count):
            return []
        counter = tirx.Var("along", loop.loop_var.ty.dtype)

        def changed(old: SBlockRealize) -> SBlockRealize:
            return rewriting.with_value(old, axis, counter + first, _chosen(old.block.body.value, chosen))

        body = rewriting.map_realizes(rewriting.clone(loop.body), changed)
        return [tirx.For(counter, 0, count, tirx.ForKind.SERIAL, body)]

    zero, simplify = tirx.const(0, loop.loop_var.ty.dtype), Analyzer().simplify
    within = part(zero, begin, 2) + part(begin, simplify(end - begin), 1) + part(end, simplify(width - end), 2)
    result: Any = tirx.SeqStmt(within) if len(within) > 1 else within[0]
    if rows:
        condition = rewriting.substitute(tirx.all(*rows) if len(rows) > 1 else rows[0], bound.get)
        result = tirx.IfThenElse(condition, result, part(zero, width, 2)[0])
    for condition in outer:
        result = tirx.IfThenElse(condition, result, None)
    return result


def _edges(realize: SBlockRealize, axis: int, conditions: list[Any]) -> tuple[Any, Any, Any] | None:
    """Return where a row begins that all of ``conditions`` hold for, where it ends, and how long all is."""
    along, width = realize.block.iter_vars[axis].var, realize.block.writes[0].source.ty.shape[axis]
    analyzer = Analyzer()
    for extent in (extent for region in realize.block.reads for extent in region.source.ty.shape):
        for variable in rewriting.variables(extent):
            analyzer.update(variable, ConstIntBound(0, MOST))
    least, most = tirx.const(0, along.ty.dtype), width - 1
    for condition in conditions:
        found = detect_clip_bound(condition, [along])
        if len(found) != 2:
            return None
        low, high = found
        least = least if low is None else tirx.max(least, low)
        most = most if high is None else tirx.min(most, high)
    begin = analyzer.simplify(tirx.min(least, width))
    return begin, analyzer.simplify(tirx.max(most + 1, begin)), analyzer.simplify(width)
