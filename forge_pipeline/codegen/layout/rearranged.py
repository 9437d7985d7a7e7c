"""Tensors that a kernel reads through the reshapes and transpositions in front of it, as if they were never made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm_ffi
from tvm import relax, te, tirx
from tvm.ir import Range
from tvm.sym import Analyzer

from forge_pipeline.codegen.layout.builder import Graph, shape_of
from forge_pipeline.codegen.tir import rewriting

MOVES = ("relax.permute_dims", "relax.reshape")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rearranged:
    """Where an element is in the tensor that is read: ``place`` has an expression of ``axes`` for each axis of it."""

    axes: tuple[tirx.Var, ...]
    place: tuple[Any, ...]

    def read(self, tensor: te.Tensor, *at: Any) -> Any:
        """Return the element at a place of the tensor as it would be."""
        places = (index.var if isinstance(index, tirx.IterVar) else index for index in at)
        values = list(zip(self.axes, places, strict=True))

        def value(variable: Any) -> Any:
            return next((value for axis, value in values if variable.same_as(axis)), None)

        return tensor(*(rewriting.substitute(place, value) for place in self.place))


def rearranged(graph: Graph, plain: relax.Expr, shape: Sequence[Any]) -> tuple[relax.Expr, Rearranged]:
    """Return the tensor behind what only moves ``plain``, to be read as if it were reshaped to ``shape``.

    Where places would have to be divided for that, less is left out: a division for each element costs more than a
    copy.
    """
    axes = tuple(tirx.Var(f"axis{number}", "int64") for number in range(len(shape)))
    analyzer = Analyzer()
    for axis, extent in zip(axes, shape, strict=True):
        analyzer.bind(axis, Range(0, extent))
    place = _reshaped(list(axes), shape, shape_of(plain), analyzer)
    if place is None or not _is_known(place, axes):
        plain = graph.emit(relax.op.reshape(plain, shape))
        return plain, Rearranged(axes=axes, place=axes)
    found = plain, Rearranged(axes=axes, place=tuple(place))
    while place is not None and (call := _move(graph, plain)) is not None:
        plain = call.args[0]
        if call.op.name == MOVES[0]:
            order = call.attrs.axes
            order = [int(axis) for axis in order] if order is not None else list(range(len(place)))[::-1]
            place = [place[order.index(axis)] for axis in range(len(order))]
        else:
            place = _reshaped(place, shape_of(call), shape_of(plain), analyzer)
        if place is not None and _is_known(place, axes) and not any(map(_divides, place)):
            found = plain, Rearranged(axes=axes, place=tuple(place))
    return found


def _move(graph: Graph, plain: relax.Expr) -> relax.Call | None:
    call = graph.builder.lookup_binding(plain) if isinstance(plain, relax.Var) else None
    return call if isinstance(call, relax.Call) and getattr(call.op, "name", "") in MOVES else None


def _reshaped(place: Sequence[Any], shape: Sequence[Any], other: Sequence[Any], analyzer: Analyzer) -> list[Any] | None:
    """Return where an element of ``shape`` is in a tensor of as many elements and another shape.

    Axes are taken together until both shapes have as many elements; None where that cannot be told.
    """
    found: list[Any] = []
    ours, theirs = list(shape), list(other)
    while ours or theirs:
        mine: list[Any] = []
        its: list[Any] = []
        while not (mine or its) or not _same(prod(mine), prod(its), analyzer):
            if not ours and not theirs:
                return None
            takes_mine = ours and (not theirs or _is_less(mine, its))
            if takes_mine:
                mine.append(ours.pop(0))
            else:
                its.append(theirs.pop(0))
        done = len(shape) - len(ours)
        found += _within(place[done - len(mine) : done], mine, its, analyzer)
    return found


def _is_less(mine: Sequence[Any], its: Sequence[Any]) -> bool:
    """Return whether the first of two products of extents has to grow; where that is not known, that of fewer."""
    one, other = prod(mine), prod(its)
    return bool(one <= other) if isinstance(one, int) and isinstance(other, int) else len(mine) <= len(its)


def _within(place: Sequence[Any], mine: Sequence[Any], its: Sequence[Any], analyzer: Analyzer) -> list[Any]:
    """Return where an element of some axes is on others of as many elements."""
    if len(mine) == len(its) == 1:
        return list(place)
    flat: Any = tirx.const(0, "int64")
    for index, extent in zip(place, mine, strict=True):
        flat = flat * extent + index
    found: list[Any] = []
    for number, extent in reversed(list(enumerate(its))):
        found.insert(0, analyzer.simplify(tirx.floormod(flat, extent) if number else flat))
        flat = analyzer.simplify(tirx.floordiv(flat, extent))
    return found


def _same(one: Any, other: Any, analyzer: Analyzer) -> bool:
    return one == other if isinstance(one, int) and isinstance(other, int) else analyzer.can_prove_equal(one, other)


def _is_known(place: Sequence[Any], axes: Sequence[Any]) -> bool:
    """Return whether places take nothing but axes: a kernel knows no extent that no tensor of it has."""
    found = (variable for part in place for variable in rewriting.variables(part))
    return all(any(variable.same_as(axis) for axis in axes) for variable in found)


def _divides(place: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(place, [(kind, found.append) for kind in (tirx.FloorDiv, tirx.FloorMod)])
    return bool(found)
