"""Softmax and the like over the middle one of three axes: what is reduced lies a row apart, so lanes are along the row.

A piece of a row that stays in the first cache is read for every step of the reduced axis, and then raised, summed and
divided. An importer makes three axes of any: those before, the reduced one, those behind it.
"""

from __future__ import annotations

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine

PIECE = 8
"""Vectors of a piece of a row: a maximum and a sum of each stay in registers, and some tens of steps in the cache."""


def applies(sch: Schedule) -> bool:
    """Return whether all reductions of a kernel are over the middle axis, and all else is element by element."""
    found = primitives.blocks(sch)
    reduced = [primitives.is_reduction(sch, block) for block in found]
    if not any(reduced) or reduced[-1]:
        return False
    return all(
        len(sch.get_loops(block)) == 3
        and len(sch.get(block).iter_vars) == 3
        and len(sch.get(block).writes) == 1
        and (not is_reduced or _is_over_middle(sch, block))
        for block, is_reduced in zip(found, reduced, strict=True)
    )


def _is_over_middle(sch: Schedule, block: SBlockRV) -> bool:
    """Return whether a reduction goes over the first axis, the last, and the middle one of what it reads."""
    first, row, step = sch.get(block).iter_vars
    kinds = [int(item.iter_type) == primitives.REDUCTION for item in (first, row, step)]
    regions = [region.region for region in sch.get(block).reads if len(region.region) == 3]
    return (
        kinds == [False, False, True]
        and bool(regions)
        and all(
            place.min.same_as(axis.var)
            for region in regions
            for place, axis in zip(region, (first, step, row), strict=True)
        )
    )


def schedule(sch: Schedule, machine: Machine) -> None:
    """Compute everything that a piece of a row needs, for all steps, while the piece is in the first cache."""
    found = primitives.blocks(sch)
    first, step, row = sch.get_loops(found[-1])
    work = primitives.product(primitives.extent(sch, loop) or primitives.UNKNOWN for loop in (first, step, row))
    length = primitives.extent(sch, row) or 1
    lanes = machine.lanes
    vectors = max((count for count in range(1, PIECE + 1) if length % (count * lanes) == 0), default=0)
    pieces = [first]
    if vectors:
        piece, row = sch.split(row, [None, vectors * lanes])
        pieces.append(piece)
    sch.reorder(*pieces, step, row)
    shared = primitives.fuse(sch, pieces)
    for block in reversed(found[:-1]):
        sch.compute_at(block, shared, preserve_unit_loops=True)
    primitives.parallel_if_worth(sch, shared, 4 * work)
    for block in found:
        is_reduced = primitives.is_reduction(sch, block)
        *_, one, other = sch.get_loops(block)
        step, row = (other, one) if is_reduced else (one, other)
        if is_reduced:
            sch.reorder(step, row)
        if vectors:
            vector, lane = sch.split(row, [None, lanes])
            sch.unroll(vector)
            sch.vectorize(lane)
        if is_reduced:
            sch.decompose_reduction(block, step)
