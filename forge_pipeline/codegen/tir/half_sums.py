"""Long sums of halves in parts: a part is added up in half precision, the parts in float32.

A sum of n numbers, rounded after each, is off by about sqrt(n) roundings (Higham, Accuracy and Stability of Numerical
Algorithms, 4.2). So no more than TERMS products are added to a half. Then the tile of sums is widened and added to
another one, in float32, which is rounded to halves once, when it is finished. This is blocked summation (Castaldo,
Whaley and Chronopoulos, SIAM J. Sci. Comput. 31(2), 2008) in two precisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm.s_tir import SBlockRealize

from forge_pipeline.codegen.tir import rewriting

HALF, SINGLE = "float16", "float32"

TERMS = 72
"""Products that are added up in half precision at most: those of eight channels and a window of 3 x 3."""


def sum_in_parts(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel whose tiles of halves are sums of at most TERMS products."""
    added: list[Any] = []

    def mutate(sequence: tirx.SeqStmt, mutator: Any) -> Any:
        parts = list(sequence.seq)
        for index, part in enumerate(parts):
            tile = _Tile.of(part, parts[:index])
            if tile is not None:
                added.append(tile.wide)
                begin = [tile.started_wide() if before is tile.start else before for before in parts[:index]]
                return tirx.SeqStmt([*begin, tile.summed(), *(tile.read(after) for after in parts[index + 1 :])])
        return mutator.default_mutate(sequence)

    body = tvm_ffi.structural_mutate(function.body, [(tirx.SeqStmt, mutate)])
    if not added:
        return function
    root = body.block
    block = s_tir.SBlock(
        [], [], [], root.name_hint, root.body, alloc_buffers=[*root.alloc_buffers, *added],
        annotations=root.annotations,
    )  # fmt: skip
    return function.with_body(s_tir.SBlockRealize([], True, block))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """Loops ``steps`` around ``body``, which adds to the tile ``sums``; ``start`` sets that to zero before them."""

    steps: list[tirx.For]
    body: Any
    start: Any
    sums: Any
    wide: Any

    @classmethod
    def of(cls, part: Any, before: list[Any]) -> _Tile | None:
        """Return the tile of halves that a statement adds more than TERMS products to, if it does; else None."""
        found = rewriting.realizes(part) if isinstance(part, tirx.For) else []
        if len(found) != 1:
            return None
        store = found[0].block.body
        if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Add):
            return None
        sums = store.buffer
        if sums.scope() != "local" or str(sums.ty.dtype) != HALF or not _loads(store.value.a, sums):
            return None
        starts = [each for each in before if _only_writes(each, sums)]
        places = [
            value
            for axis, value in zip(found[0].block.iter_vars, found[0].iter_values, strict=True)
            if int(axis.iter_type) != tirx.IterVar.CommReduce
        ]
        steps, body = [], part
        while isinstance(body, tirx.For) and not any(rewriting.reads(place, body.loop_var) for place in places):
            steps.append(body)
            body = body.body
        count = 1
        for loop in steps:
            count *= int(loop.extent) if isinstance(loop.extent, tirx.IntImm) else TERMS + 1
        if not starts or count <= TERMS:
            return None
        wide = tirx.decl_buffer(sums.ty.shape, SINGLE, f"{sums.name}_wide", scope="local")
        return cls(steps=steps, body=body, start=starts[-1], sums=sums, wide=wide)

    def started_wide(self) -> Any:
        """Return what sets the sum of parts to zero."""

        def zero(realize: SBlockRealize) -> SBlockRealize:
            store = realize.block.body
            return self._wide_block(realize, tirx.const(0.0, SINGLE), store.indices, [])

        return rewriting.map_realizes(rewriting.clone(self.start), zero)

    def summed(self) -> Any:
        """Return the loops, in parts."""
        inner = 1
        for depth in reversed(range(len(self.steps))):
            extent = self.steps[depth].extent
            if not isinstance(extent, tirx.IntImm) or inner * int(extent) > TERMS:
                break
            inner *= int(extent)
        loop = self.steps[depth]
        nest = self.body
        for step in reversed(self.steps[depth + 1 :]):
            nest = _around(step, step.loop_var, step.extent, nest)
        result = self._in_parts(loop, nest, max(1, TERMS // inner))
        for step in reversed(self.steps[:depth]):
            result = _around(step, step.loop_var, step.extent, result)
        return result

    def _in_parts(self, loop: tirx.For, nest: Any, most: int) -> Any:
        """Return a loop of which ``most`` turns, or a few less where these divide it, are a part."""
        extent, kind = loop.extent, loop.loop_var.ty.dtype
        if isinstance(extent, tirx.IntImm):
            length = int(extent)
            size = max(count for count in range(1, most + 1) if length % count == 0)
            size = size if 2 * size >= most else most
            parts, rest = tirx.const(length // size, kind), tirx.const(length % size, kind)
        else:
            size = most
            parts, rest = extent // size, extent % size
        part = tirx.Var("part", kind)
        whole = tirx.For(
            part, 0, parts, tirx.ForKind.SERIAL, self._part(loop, nest, part * size, tirx.const(size, kind))
        )
        if isinstance(rest, tirx.IntImm) and int(rest) == 0:
            return whole
        return tirx.SeqStmt([whole, self._part(loop, nest, parts * size, rest)])

    def _part(self, loop: tirx.For, nest: Any, first: Any, size: Any) -> Any:
        """Return ``size`` turns of a loop from ``first`` on, and the addition of what they sum up."""
        turn = tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype)
        own = rewriting.clone(nest)
        body = rewriting.substitute(own, lambda seen: first + turn if seen.same_as(loop.loop_var) else None)
        return tirx.SeqStmt([rewriting.clone(self.start), _around(loop, turn, size, body), self._added()])

    def _added(self) -> Any:
        """Return the addition of a part to the sum of parts."""

        def add(realize: SBlockRealize) -> SBlockRealize:
            place, own = realize.block.body.indices, realize.block.writes[0].region
            part = tirx.Cast(SINGLE, tirx.BufferLoad(self.sums, place))
            reads = [tirx.BufferRegion(self.sums, own), tirx.BufferRegion(self.wide, own)]
            return self._wide_block(realize, tirx.BufferLoad(self.wide, place) + part, place, reads)

        return rewriting.map_realizes(rewriting.clone(self.start), add)

    def _wide_block(self, realize: SBlockRealize, value: Any, place: Any, reads: list[Any]) -> SBlockRealize:
        """Return a block that stores to the sum of parts where ``realize`` sets a part to zero."""
        old = realize.block
        writes = [tirx.BufferRegion(self.wide, old.writes[0].region)]
        store = tirx.BufferStore(self.wide, value, place)
        block = s_tir.SBlock(old.iter_vars, reads, writes, f"{old.name_hint}_wide", store, annotations=old.annotations)
        return s_tir.SBlockRealize(realize.iter_values, realize.predicate, block)

    def read(self, statement: Any) -> Any:
        """Return a statement that reads the sum of parts, rounded, where it read the tile."""

        def narrow(load: TensorLoad) -> Any:
            if not load.source.same_as(self.sums):
                return load
            return tirx.Cast(HALF, tirx.BufferLoad(self.wide, load.indices))

        def keep(cast: tirx.Cast) -> Any:
            inner = cast.value
            is_back = str(cast.ty.dtype) == SINGLE and isinstance(inner, tirx.Cast) and _loads(inner.value, self.wide)
            return inner.value if is_back else cast

        def regions(realize: SBlockRealize) -> SBlockRealize:
            old = realize.block
            reads = [
                tirx.BufferRegion(self.wide, each.region) if each.source.same_as(self.sums) else each
                for each in old.reads
            ]
            block = s_tir.SBlock(
                old.iter_vars, reads, old.writes, old.name_hint, old.body, alloc_buffers=old.alloc_buffers,
                annotations=old.annotations,
            )  # fmt: skip
            return s_tir.SBlockRealize(realize.iter_values, realize.predicate, block)

        body = tvm_ffi.structural_map(statement, [(TensorLoad, narrow)])
        return rewriting.map_realizes(tvm_ffi.structural_map(body, [(tirx.Cast, keep)]), regions)


def _around(loop: tirx.For, variable: Any, extent: Any, body: Any) -> tirx.For:
    return tirx.For(variable, loop.min, extent, loop.kind, body, annotations=loop.annotations)


def _loads(expression: Any, buffer: Any) -> bool:
    return isinstance(expression, TensorLoad) and bool(expression.source.same_as(buffer))


def _only_writes(statement: Any, buffer: Any) -> bool:
    """Return whether a statement is one block that sets numbers of ``buffer`` and reads nothing."""
    found = rewriting.realizes(statement)
    return len(found) == 1 and not found[0].block.reads and bool(found[0].block.writes[0].source.same_as(buffer))
