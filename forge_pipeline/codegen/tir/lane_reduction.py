"""Reductions along rows of any length: whole vectors in lanes, what is left one by one, and the lanes at last.

A sum of floats is added up in the order that is written, so LLVM makes one chain of it. TVM's schedules split a chain
only where vectors divide it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from forge_pipeline.codegen.tir import rewriting
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.codegen.tir.primitives import is_nan

LANES = "forge.lanes"
"""The annotation of the outermost loop of a reduction that starts before it: the lanes of a vector."""

VECTORS = 4
"""Vectors of partial results side by side at most: they hide the latency of additions."""

STARTS: dict[Any, Callable[[str], Any]] = {
    tirx.Add: lambda kind: tirx.const(0, kind),
    tirx.Mul: lambda kind: tirx.const(1, kind),
    tirx.Max: tirx.min_value,
    tirx.Min: tirx.max_value,
}
"""What may be reduced so, and what its partial results start from."""


def reduce_in_lanes(sch: Schedule, loop: LoopRV, machine: Machine) -> None:
    """Mark the outermost loop of a reduction whose innermost one is along a row."""
    sch.annotate(loop, LANES, machine.lanes)


def split_chains(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel whose marked reductions are made in lanes."""
    partial: list[Any] = []

    def mutate(loop: tirx.For, mutator: Any) -> Any:
        if LANES not in loop.annotations:
            return mutator.default_mutate(loop)
        chain = _Chain.of(loop)
        if chain is None:
            return loop
        partial.append(chain.partial)
        return chain.in_lanes()

    body = tvm_ffi.structural_mutate(function.body, [(tirx.For, mutate)])
    if not partial:
        return function
    root = body.block
    buffers, notes = [*root.alloc_buffers, *partial], root.annotations
    block = s_tir.SBlock([], [], [], root.name_hint, root.body, alloc_buffers=buffers, annotations=notes)
    return function.with_body(s_tir.SBlockRealize([], True, block))


@dataclass(frozen=True, slots=True)
class _Extreme:
    """The greater or the lesser of two numbers, or NaN where one is."""

    compare: Callable[[Any, Any], Any]

    def __call__(self, own: Any, other: Any) -> Any:
        return tirx.Select(tirx.any(self.compare(own, other), is_nan(own)), own, other)


@dataclass(frozen=True, slots=False, kw_only=True)
class _Chain:
    """Loops around ``result[place] = combine(result[place], number)``, which the innermost runs along a row."""

    loops: list[tirx.For]
    lanes: int
    combine: Callable[[Any, Any], Any]
    start: Any
    result: Any
    place: list[Any]
    number: Any

    @classmethod
    def of(cls, loop: tirx.For) -> _Chain | None:
        """Return the reduction that a loop makes, or None where it does more, or something else."""
        loops, body = [loop], loop.body
        while isinstance(body, tirx.For):
            loops.append(body)
            body = body.body
        if not isinstance(body, s_tir.SBlockRealize) or rewriting.conjuncts(body.predicate):
            return None
        if body.block.init is not None or not isinstance(body.block.body, tirx.BufferStore):
            return None
        bound = dict(zip((axis.var for axis in body.block.iter_vars), body.iter_values, strict=True))
        store = rewriting.substitute(body.block.body, bound.get)
        value, kind = store.value, str(store.buffer.ty.dtype)
        combine: Callable[[Any, Any], Any]
        if type(value) in STARTS:
            combine, start, pair = type(value), STARTS[type(value)](kind), (value.a, value.b)
        elif isinstance(value, tirx.Select) and isinstance(value.condition, tirx.Or):
            sign = {tirx.GT: -1, tirx.LT: 1}.get(type(value.condition.a))
            if sign is None:
                return None
            combine, start = _Extreme(type(value.condition.a)), tirx.const(sign * math.inf, kind)
            pair = (value.true_value, value.false_value)
        else:
            return None
        for own, number in (pair, pair[::-1]):
            if isinstance(own, TensorLoad) and own.source.same_as(store.buffer):
                return cls(
                    loops=loops, lanes=int(loop.annotations[LANES]), combine=combine, start=start, result=store.buffer,
                    place=list(store.indices), number=number,
                )  # fmt: skip
        return None

    @property
    def vectors(self) -> int:
        """How many vectors are side by side: as many as a row fills, a power of two."""
        length = self.loops[-1].extent
        filled = int(length) // self.lanes if isinstance(length, tirx.IntImm) else VECTORS
        return next((count for count in (VECTORS, VECTORS // 2) if count <= filled), 1)

    @cached_property
    def partial(self) -> Any:
        """The results of each lane."""
        return tirx.decl_buffer((self.vectors * self.lanes,), str(self.result.ty.dtype), "partial", scope="local")

    def in_lanes(self) -> Any:
        """Return what the loops do, in lanes."""
        *outer, row = self.loops
        kind, lanes = row.loop_var.ty.dtype, self.lanes
        length, many = row.extent, self.vectors * lanes
        whole = length // many

        def at(place: Any) -> Any:
            return rewriting.substitute(self.number, lambda seen: place if seen.same_as(row.loop_var) else None)

        def lane_by_lane(first: Any, make: Any) -> Any:
            lane = tirx.Var("lane", kind)
            return tirx.For(lane, 0, lanes, tirx.ForKind.VECTORIZED, make(first + lane))

        def added(slot: Any, number: Any) -> Any:
            return tirx.BufferStore(self.partial, self.combine(tirx.BufferLoad(self.partial, [slot]), number), [slot])

        begin = [
            lane_by_lane(
                tirx.const(vector * lanes, kind), lambda slot: tirx.BufferStore(self.partial, self.start, [slot])
            )
            for vector in range(self.vectors)
        ]
        turn, rest, one = (tirx.Var(name, kind) for name in ("turn", "rest", "one"))
        vectors = [
            lane_by_lane(tirx.const(vector * lanes, kind), lambda slot: added(slot, at(turn * many + slot)))
            for vector in range(self.vectors)
        ]
        turns: Any = tirx.SeqStmt(vectors) if len(vectors) > 1 else vectors[0]
        single = lane_by_lane(tirx.const(0, kind), lambda slot: added(slot, at(whole * many + rest * lanes + slot)))
        own = tirx.BufferLoad(self.result, self.place)
        left = tirx.BufferStore(self.result, self.combine(own, at(length // lanes * lanes + one)), self.place)
        steps: Any = tirx.SeqStmt([
            tirx.For(turn, 0, whole, tirx.ForKind.SERIAL, turns),
            tirx.For(rest, 0, length // lanes - whole * self.vectors, tirx.ForKind.SERIAL, single),
            tirx.For(one, 0, length % lanes, tirx.ForKind.SERIAL, left),
        ])  # fmt: skip
        for loop in reversed(outer):
            steps = tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, steps)
        return tirx.SeqStmt([*begin, steps, *self._together(own)])

    def _together(self, own: Any) -> list[Any]:
        """Combine what the lanes have, by halves."""
        steps: list[Any] = []
        half = self.vectors * self.lanes // 2
        while half:
            lane = tirx.Var("lane", "int64")
            pair = (tirx.BufferLoad(self.partial, [lane + first]) for first in (0, half))
            store = tirx.BufferStore(self.partial, self.combine(*pair), [lane])
            steps.append(tirx.For(lane, 0, half, tirx.ForKind.VECTORIZED, store))
            half //= 2
        total = tirx.BufferLoad(self.partial, [tirx.const(0, "int64")])
        return [*steps, tirx.BufferStore(self.result, self.combine(own, total), self.place)]
