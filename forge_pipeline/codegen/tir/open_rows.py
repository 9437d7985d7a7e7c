"""Rows of open length in vectors, where LLVM makes none, or computes what fills none one by one.

LLVM has to prove that a value which all of a row reads is not written in it, and leaves what is over at a row's end to
a loop over single numbers, of which each takes as long as a vector where the function is dear. Here the last vector is
moved back to end with the row: it computes a few numbers once more. A kernel's own buffers may share their memory, so
that these numbers would be computed from themselves: there the last vector has only what is over.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.sym import detect_linear_equation

from forge_pipeline.codegen.tir import rewriting
from forge_pipeline.codegen.tir.math.vector_math import FUNCTIONS

LONG = 16
"""Operations from which on a row's vectors are as wide as the CPU has them (a cast to int32, 0.7 of the time)."""

ROW = "forge.row"
"""The annotation of a loop along a row of open length: how many lanes a vector has."""


def chooses(sch: Schedule, block: SBlockRV) -> bool:
    """Return whether a block chooses between two values that it has both."""
    found: list[Any] = []
    tvm_ffi.structural_walk(sch.get(block).body, [(tirx.Select, found.append)])
    return bool(found)


def is_long(sch: Schedule, block: SBlockRV) -> bool:
    """Return whether a block's value takes many instructions, of which LLVM's vectors take more: they are 256 bits."""
    found: list[Any] = []
    kinds = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max, Call)
    tvm_ffi.structural_walk(sch.get(block).body, [(kind, found.append) for kind in kinds])
    return len(found) >= LONG


def vectorize(sch: Schedule, row: LoopRV, lanes: int) -> None:
    """Mark a row of open length; `by_vectors` does the rest."""
    sch.annotate(row, ROW, lanes)


def by_vectors(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel whose marked rows go by vectors."""
    root = function.body
    own = list(root.block.alloc_buffers) if isinstance(root, s_tir.SBlockRealize) else []

    def mutate(loop: tirx.For, mutator: Any) -> Any:
        if ROW not in loop.annotations:
            return mutator.default_mutate(loop)
        return _by_vectors(loop, int(loop.annotations[ROW]), own) or loop

    return function.with_body(tvm_ffi.structural_mutate(function.body, [(tirx.For, mutate)]))


def _by_vectors(loop: tirx.For, lanes: int, own: list[Any]) -> Any:
    """Return the loops over a row's vectors; None where its numbers do not lie one after the other.

    ``own`` are the buffers of the kernel: TVM gives a result the memory of an operand that is read nowhere else.
    """
    realize = loop.body
    if not isinstance(realize, s_tir.SBlockRealize) or rewriting.conjuncts(realize.predicate):
        return None
    if realize.block.init is not None or not isinstance(realize.block.body, tirx.BufferStore):
        return None
    bound = dict(zip((axis.var for axis in realize.block.iter_vars), realize.iter_values, strict=True))
    store = rewriting.substitute(realize.block.body, bound.get)
    if any(_divides(value) for value in realize.iter_values) and _calls(store.value):
        return None
    loads = rewriting.loads(store.value)
    if not all(_in_order(list(item.indices), loop.loop_var) for item in (store, *loads)):
        return None
    kind, extent = loop.loop_var.ty.dtype, loop.extent

    def vector(first: Any, count: Any = lanes) -> Any:
        lane = tirx.Var("lane", kind)
        value = rewriting.substitute(store, lambda seen: first + lane if seen.same_as(loop.loop_var) else None)
        is_sized = isinstance(count, int | tirx.IntImm)
        return tirx.For(lane, 0, count, tirx.ForKind.VECTORIZED if is_sized else tirx.ForKind.SERIAL, value)

    turn = tirx.Var("turn", kind)
    whole = tirx.For(turn, 0, extent // lanes, tirx.ForKind.SERIAL, vector(turn * lanes))
    rest = extent % lanes
    may_share = _are_of(realize.block.writes, own) and _are_of(realize.block.reads, own)
    last = tirx.IfThenElse(rest > 0, vector(extent - rest, rest) if may_share else vector(extent - lanes), None)
    plain = tirx.For(loop.loop_var, loop.min, extent, loop.kind, realize)
    return tirx.IfThenElse(extent >= lanes, tirx.SeqStmt([whole, last]), plain)


def _are_of(regions: Any, buffers: list[Any]) -> bool:
    """Return whether one of some regions is of one of some buffers."""
    return any(region.source.same_as(buffer) for region in regions for buffer in buffers)


def _divides(place: Any) -> bool:
    """Return whether a place takes division by an open extent: in vectors, TVM takes seconds to simplify a few."""
    found: list[Any] = []
    tvm_ffi.structural_walk(place, [(tirx.FloorDiv, found.append), (tirx.FloorMod, found.append)])
    return any(not isinstance(item.b, tirx.IntImm) for item in found)


def _calls(value: Any) -> bool:
    """Return whether a function is called, such as exp."""
    found: list[Any] = []
    tvm_ffi.structural_walk(value, [(tvm.ir.Call, found.append)])
    return any(getattr(call.op, "name", "") in FUNCTIONS for call in found)


def _in_order(places: list[Any], variable: Any) -> bool:
    """Return whether an element's last place grows by one with a variable, or none does at all."""
    if not any(rewriting.reads(place, variable) for place in places):
        return True
    if any(rewriting.reads(place, variable) for place in places[:-1]):
        return False
    linear = detect_linear_equation(places[-1], [variable])
    return len(linear) == 2 and isinstance(linear[0], tirx.IntImm) and int(linear[0]) == 1
