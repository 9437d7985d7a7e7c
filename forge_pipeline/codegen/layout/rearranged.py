"""Tensors that a kernel reads through the reshapes and transpositions in front of it, as if they were never made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


def rearranged(graph: Graph, plain: relax.Expr, shape: Sequence[int]) -> tuple[relax.Expr, Rearranged]:
    """Return the tensor behind what only moves ``plain``, to be read as if it were reshaped to ``shape``.

    Where places would have to be divided for that, less is left out: a division for each element costs more than a
    copy.
    """
    axes = tuple(tirx.Var(f"axis{number}", "int64") for number in range(len(shape)))
    analyzer = Analyzer()
    for axis, extent in zip(axes, shape, strict=True):
        analyzer.bind(axis, Range(0, extent))
    place: list[Any] = _reshaped(list(axes), shape, shape_of(plain), analyzer)
    found = plain, Rearranged(axes=axes, place=tuple(place))
    while (call := _move(graph, plain)) is not None:
        plain = call.args[0]
        if call.op.name == MOVES[0]:
            order = call.attrs.axes
            order = [int(axis) for axis in order] if order is not None else list(range(len(place)))[::-1]
            place = [place[order.index(axis)] for axis in range(len(order))]
        else:
            place = _reshaped(place, shape_of(call), shape_of(plain), analyzer)
        if not any(_divides(part) for part in place):
            found = plain, Rearranged(axes=axes, place=tuple(place))
    return found


def _move(graph: Graph, plain: relax.Expr) -> relax.Call | None:
    call = graph.builder.lookup_binding(plain) if isinstance(plain, relax.Var) else None
    return call if isinstance(call, relax.Call) and getattr(call.op, "name", "") in MOVES else None


def _reshaped(place: Sequence[Any], shape: Sequence[int], other: Sequence[int], analyzer: Analyzer) -> list[Any]:
    """Return where an element of ``shape`` is in a tensor of as many elements and another shape."""
    if tuple(shape) == tuple(other):
        return list(place)
    flat: Any = tirx.const(0, "int64")
    for index, extent in zip(place, shape, strict=True):
        flat = flat * extent + index
    found: list[Any] = []
    for extent in reversed(other):
        found.insert(0, analyzer.simplify(tirx.floormod(flat, extent)))
        flat = analyzer.simplify(tirx.floordiv(flat, extent))
    return found


def _divides(place: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(place, [(kind, found.append) for kind in (tirx.FloorDiv, tirx.FloorMod)])
    return bool(found)
