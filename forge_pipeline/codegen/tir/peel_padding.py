"""Padded copies without tests in their loops: a row of zeros, or zeros, the image's row, and zeros again."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize

from forge_pipeline.codegen.tir import primitives, rewriting

EDGES = "forge.edges"
"""The annotation of a block that pads: zeros on the left and on the right of a row."""

ROW = 3
"""The axis along a row, of an image in either layout."""


def peel(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel whose padded copies test for the edges once in a row, not once for each pixel."""

    def peel(loop: tirx.For, mutator: Any) -> Any:
        realizes = rewriting.realizes(loop)
        if len(realizes) == 1 and _is_row_loop(realizes[0], loop):
            return _peel(loop, realizes[0])
        return mutator.default_mutate(loop)

    body = tvm_ffi.structural_mutate(function.body, [(tirx.For, peel)])
    return function.with_body(body)


def _is_row_loop(realize: SBlockRealize, loop: tirx.For) -> bool:
    if EDGES not in realize.block.annotations or realize.block.annotations.get(primitives.FAMILY) != primitives.PAD:
        return False
    along = realize.iter_values[ROW]
    if along.same_as(loop.loop_var):
        return True
    extents = realize.block.writes[0].source.ty.shape  # a margin may leave TVM's region begin at an expression of them
    known = [variable for extent in extents for variable in rewriting.variables(extent)]
    others = [item for item in rewriting.variables(along) if not any(item.same_as(one) for one in known)]
    return len(others) == 1 and bool(others[0].same_as(loop.loop_var))


def _peel(loop: tirx.For, realize: SBlockRealize) -> Any:
    block = realize.block
    left, right = (int(item) for item in block.annotations[EDGES])
    along = block.iter_vars[ROW].var
    value = block.body.value  # if_then_else(inside, a pixel, filler)
    inside, pixel, filler = value.args
    rows = [item for item in rewriting.conjuncts(inside) if not rewriting.reads(item, along)]
    outer = [item for item in rewriting.conjuncts(realize.predicate) if not rewriting.reads(item, loop.loop_var)]
    width = block.writes[0].source.ty.shape[ROW]

    def part(first: Any, count: Any, content: Any) -> list[Any]:
        if isinstance(count, int) and not count:
            return []
        counter = tirx.Var("along", loop.loop_var.ty.dtype)

        def changed(old: SBlockRealize) -> SBlockRealize:
            return rewriting.with_value(old, ROW, counter + first, content)

        body = rewriting.map_realizes(rewriting.clone(loop.body), changed)
        return [tirx.For(counter, 0, count, tirx.ForKind.SERIAL, body)]

    within = part(0, left, filler) + part(left, width - left - right, pixel) + part(width - right, right, filler)
    result: Any = tirx.SeqStmt(within) if len(within) > 1 else within[0]
    if rows:
        bound = dict(zip((axis.var for axis in block.iter_vars), realize.iter_values, strict=True))
        condition = rewriting.substitute(tirx.all(*rows) if len(rows) > 1 else rows[0], bound.get)
        result = tirx.IfThenElse(condition, result, part(0, width, filler)[0])
    for condition in outer:
        result = tirx.IfThenElse(condition, result, None)
    return result
