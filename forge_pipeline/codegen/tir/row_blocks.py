"""Blocks of an image's rows, of open number, as even as can be: threads share them by their number.

A schedule cuts rows into blocks of so many; the last one has what the others leave. Of nine rows in blocks of eight one
thread had all but one, and of 36 in five blocks two thirds. So blocks are as many as make turns for all cores, and a
call finds out how many rows each has. What a block copies for itself, with the rows around it, is less then, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV
from tvm.sym.analyzer import Analyzer

from forge_pipeline.codegen.tir import primitives, rewriting
from forge_pipeline.codegen.tir.machine import Machine

SHARE = "forge.shares_rows"
"""The annotation of a loop over blocks of rows: the most rows of one, how many loops in it are shared with it, and how
many blocks are a turn for all cores."""

FEWEST = 2
"""Rows that a block has at least, where there are: one of a window of three would copy three rows for its own."""


def share(
    sch: Schedule, blocks: LoopRV, rows: int, machine: Machine, *, work: int, inside: Sequence[LoopRV] = ()
) -> None:
    """Let threads share blocks of ``rows`` rows at most, with the loop around them and those next ``inside``."""
    parts = primitives.product(primitives.extent(sch, loop) for loop in inside)
    sch.annotate(blocks, SHARE, [rows, len(inside), machine.cores if parts < primitives.TURNS * machine.cores else 1])
    primitives.parallel_if_worth(sch, blocks, work)


def even(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``function`` whose shared blocks of rows are even, and one loop with what is shared with them."""

    def level(loop: tirx.For, mutator: Any) -> Any:
        blocks = loop.body
        return _evened(loop, blocks) if SHARE in getattr(blocks, "annotations", {}) else mutator.default_mutate(loop)

    return function.with_body(tvm_ffi.structural_mutate(function.body, [(tirx.For, level)]))


def _evened(around: tirx.For, blocks: tirx.For) -> tirx.For:
    """Return one loop over blocks of rows, and over what is around them and in them as far as threads share that."""
    most, inside, turn = (int(number) for number in blocks.annotations[SHARE])
    height = _height(blocks)
    body, block, number = blocks.body, blocks.loop_var, blocks.extent
    if height is not None:
        block, number = tirx.Var("block", "int64"), Analyzer().simplify(_number_of_blocks(height, most, turn))
    outer = [(around.loop_var, around.extent), (block, number)]
    for _ in range(inside):
        outer.append((body.loop_var, body.extent))
        body = body.body
    if height is not None:
        rows = Analyzer().simplify(_parts(height, number))
        first = block * rows if isinstance(height, tirx.IntImm) else tirx.Var("first_row", "int64")
        body = _moved(body, blocks.loop_var, most, first, rows)
        if isinstance(first, tirx.Var):
            begin, end = (Analyzer().simplify(tirx.floordiv(at * height, number)) for at in (block, block + 1))
            body = _named(first, begin, _before(end, first, body), height)
    shared = tirx.Var("shared", "int64")
    left: Any = shared
    places = dict[Any, Any]()
    for counter, extent in reversed(outer[1:]):
        places[counter], left = tirx.floormod(left, extent), tirx.floordiv(left, extent)
    body = rewriting.substitute(body, (places | {around.loop_var: left}).get)
    extent = reduce(mul, (extent for _, extent in outer))
    notes = {name: note for name, note in blocks.annotations.items() if name != SHARE}
    return tirx.For(shared, tirx.IntImm("int64", 0), extent, blocks.kind, body, annotations=notes)


def _named(first: Any, begin: Any, body: Any, height: Any) -> tirx.For:
    """Return a loop of one turn, of none where there is no row, whose counter is where a block begins.

    TVM would take that apart where it asks how much of a tensor is in use, and keep all of it.
    """
    return tirx.For(first, begin, tirx.min(height, 1), tirx.ForKind.SERIAL, body)


def _before(end: Any, first: Any, body: Any) -> Any:
    """Return what a block does, of the result's rows for those before ``end``."""
    result = rewriting.realizes(body)[-1]
    row = next(value for value in result.iter_values if rewriting.reads(value, first))

    def bound(loop: tirx.For, mutator: Any) -> tirx.For:
        if not rewriting.reads(row, loop.loop_var):
            return mutator.default_mutate(loop)
        # As a number: TVM would take bounds from a condition, too.
        is_one = tirx.Cast("int32", row < end) != tirx.const(0, "int32")
        inner = tirx.IfThenElse(is_one, loop.body, None)
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, inner, annotations=loop.annotations)

    return tvm_ffi.structural_mutate(body, [(tirx.For, bound)])


def _height(blocks: tirx.For) -> Any:
    """Return the extent of the results' axis that is cut into blocks of rows; None where there is one block."""
    result = rewriting.realizes(blocks)[-1]
    for axis, value in zip(result.block.iter_vars, result.iter_values, strict=True):
        if rewriting.reads(value, blocks.loop_var):
            return axis.dom.extent
    return None


def _number_of_blocks(height: Any, most: int, turn: int) -> Any:
    """Return how many blocks of ``most`` rows at most there are: whole turns, where rows are not too few for that."""
    number = _parts(height, most * turn) * turn
    number = tirx.min(number, _parts(height, FEWEST)) if turn > 1 else number
    return tirx.max(number, tirx.const(1, height.ty.dtype))


def _parts(extent: Any, size: Any) -> Any:
    return tirx.floordiv(extent + (size - 1), size)


def _moved(body: Any, block: Any, most: int, first: Any, rows: Any) -> Any:
    """Return what a block of ``most`` rows does for ``rows`` from the ``first`` on.

    ``block`` is its number in ``body``, which occurs in no way but times a multiple of ``most``.
    """
    extents = dict[Any, Any]()
    for loop in rewriting.loops(body):
        for realize in rewriting.realizes(loop.body):
            for value in realize.iter_values:
                step = _step(value, block)
                if step and _step(value, loop.loop_var):
                    extents[loop.loop_var] = rows * (step // most) + (loop.extent - step)

    def begin(product: tirx.Mul) -> Any:
        if not product.a.same_as(block):
            return product
        step, rest = divmod(int(product.b), most)
        if rest:
            raise ValueError(f"{product} is where no block of {most} rows begins")
        return first * step

    moved = tvm_ffi.structural_map(body, [(tirx.Mul, begin)])
    if rewriting.reads(moved, block):
        raise ValueError(f"blocks of {most} rows are numbered in other ways than by where they begin")
    return rewriting.with_extents(moved, extents)


def _step(value: Any, counter: Any) -> int:
    """Return how far a counter's turn moves a value; 0 where that is no number."""
    moved = rewriting.substitute(value, {counter: counter + 1}.get)
    step = Analyzer().simplify(moved - value)
    return int(step) if isinstance(step, tirx.IntImm) else 0
