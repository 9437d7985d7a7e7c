"""What a tile reads, where each turn of the loops around it reads, and prefetches of what a later turn does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize
from tvm.sym.analyzer import Analyzer

from forge_pipeline.codegen.tir import primitives, rewriting

READ, SECOND_CACHE, FIRST_CACHE, DATA = 0, 2, 3, 1
"""What `llvm.prefetch` is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a block in a tile reads: where, by the variables of the ``loops`` in the tile and of the two around it.

    ``width``: elements that are read at once; None where a loop over lanes says that.
    """

    buffer: Any
    indices: Sequence[Any]
    loops: frozenset[Any]
    width: int | None = None

    def moved_by(self, variable: Any) -> int | None:
        """Return how many elements on a loop's second turn reads; None where that is no number."""
        first, second = (self._offset(variable, at) for at in (0, 1))
        distance = Analyzer().simplify(second - first)
        return int(distance) if isinstance(distance, tirx.IntImm) else None

    def _offset(self, variable: Any, place: int) -> Any:
        places, offset = dict.fromkeys(self.loops, 0) | {variable: place}, tirx.IntImm("int64", 0)
        for at, extent in zip(self.indices, self.buffer.ty.shape, strict=True):
            offset = offset * extent + rewriting.substitute(at, places.get)
        return offset


def reads_of(block: Any) -> list[tuple[Any, Sequence[Any], int | None]]:
    """Return what a block reads, where, and how many elements side by side where an instruction reads them at once."""
    found: list[tuple[Any, Sequence[Any], int | None]] = [
        (load.source, load.indices, None) for load in rewriting.loads(block.body)
    ]
    for matched in block.match_buffers:
        extents = [part.extent for part in matched.source.region]
        if all(isinstance(extent, tirx.IntImm) for extent in extents):
            width = primitives.product(map(int, extents))
            found.append((matched.source.source, [part.min for part in matched.source.region], width))
    return found


def steps_of(realize: SBlockRealize, inside: Sequence[tirx.For]) -> list[tirx.For]:
    """Return the loops over what a block sums, outermost first."""
    summed = [
        value
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        if int(axis.iter_type) == primitives.REDUCTION
    ]
    found = [loop for loop in inside if any(rewriting.reads(value, loop.loop_var) for value in summed)]
    return sorted(found, key=lambda loop: -len(rewriting.loops(loop.body)))


def ask(buffer: Any, indices: Sequence[Any], cache: int) -> tirx.Evaluate:
    """Return a prefetch of an element's line."""
    address = tirx.address_of(tirx.BufferLoad(buffer, indices))
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", address, READ, cache, DATA))
