"""Sums, maxima and the like that leave fewer numbers: over neighbours in vector lanes, over rows of others row by row.

Over the axis whose numbers are neighbours in memory, each lane reduces every so many of them, and the lanes are put
together at the end (`lane_reduction`). Over any other axis, rows of results are updated by rows of numbers. Extents are
open or not; LLVM makes vectors of open rows.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.elementwise_blocks import schedule_elementwise
from forge_pipeline.codegen.tir.lane_reduction import reduce_in_lanes
from forge_pipeline.codegen.tir.machine import Machine

LEAST_GROUP, GROUP = 4, 32
"""Rows that are reduced by themselves: as many as divide all of them."""
PIECE = 8
"""Vectors of a row whose results stay in registers."""


def applies(sch: Schedule) -> bool:
    """Return whether a kernel makes one reduction, of one tensor whose neighbours in memory one of its loops visits."""
    found = [block for block in primitives.blocks(sch) if primitives.is_reduction(sch, block)]
    if len(found) != 1 or len(sch.get(found[0]).writes) != 1:
        return False
    return len(sch.get_loops(found[0])) == len(sch.get(found[0]).iter_vars) and _along(sch, found[0]) is not None


def schedule(sch: Schedule, machine: Machine) -> None:
    """Make what is reduced where it is read, and what follows where a result is ready."""
    (block,) = (block for block in primitives.blocks(sch) if primitives.is_reduction(sch, block))
    before = primitives.ancestors(sch, block)
    for producer in before:
        if primitives.is_select(sch, producer):
            schedule_elementwise(sch, producer, machine)
        else:
            sch.compute_inline(producer)
    after = [item for item in primitives.blocks(sch) if sch.get(item).name_hint != sch.get(block).name_hint]
    for item in after[:-1]:
        sch.compute_inline(item)
    along = _along(sch, block)
    if along is None:
        raise ValueError("what is read where it is needed has no neighbours")
    if _is_reduced(sch, block, along):
        _reduce_lanes(sch, machine, block, along, after[-1:])
    else:
        _reduce_rows(sch, machine, block, along, after[-1:])


def _along(sch: Schedule, block: SBlockRV) -> int | None:
    """Return the loop that goes along the last axis of the largest tensor that a reduction reads."""
    regions = [region for region in sch.get(block).reads if len(region.region)]
    variables = [variable.var for variable in sch.get(block).iter_vars]
    largest = max(regions, key=lambda region: len(region.region), default=None)
    if largest is None:
        return None
    place = largest.region[-1].min
    return next((index for index, variable in enumerate(variables) if place.same_as(variable)), None)


def _is_reduced(sch: Schedule, block: SBlockRV, index: int) -> bool:
    return int(sch.get(block).iter_vars[index].iter_type) == primitives.REDUCTION


def _kept(sch: Schedule, block: SBlockRV) -> int:
    """Return how many loops of a reduction are over its results: they come first."""
    return sum(int(variable.iter_type) != primitives.REDUCTION for variable in sch.get(block).iter_vars)


def _work(sch: Schedule, block: SBlockRV) -> int:
    return primitives.work_of(primitives.extents(sch, block))


def _reduce_lanes(sch: Schedule, machine: Machine, block: SBlockRV, along: int, after: list[SBlockRV]) -> None:
    kept, work = _kept(sch, block), _work(sch, block)
    count = len(sch.get(block).iter_vars) - kept
    _place(sch, [block], kept, work, after)
    steps = sch.get_loops(block)[-count:]
    row = steps.pop(along - kept)
    if steps:
        sch.reorder(*steps, row)
    reduce_in_lanes(sch, (steps or [row])[0], machine)
    sch.decompose_reduction(block, (steps or [row])[0])


def _reduce_rows(sch: Schedule, machine: Machine, block: SBlockRV, along: int, after: list[SBlockRV]) -> None:
    kept, work = _kept(sch, block), _work(sch, block)
    if along != kept - 1:
        raise ValueError("results do not lie as what they are made of")
    row = sch.get_loops(block)[kept - 1]
    groups = _groups(sch, block, kept) if _vectors(sch, machine, row) else []
    _place(sch, [block], kept - 1, work, after)
    outer = _by_rows(sch, machine, block)
    for group in groups:
        sch.compute_at(group, outer, preserve_unit_loops=True)
        sch.set_scope(group, 0, "local")
        sch.decompose_reduction(group, _by_rows(sch, machine, group))
    sch.decompose_reduction(block, outer)


def _by_rows(sch: Schedule, machine: Machine, block: SBlockRV) -> LoopRV:
    """Have a block go along a piece of a row for each step, one that stays in registers; return the outermost step."""
    loops = sch.get_loops(block)
    realized = sch.get(loops[-1]).body
    bound = [
        (int(variable.iter_type) == primitives.REDUCTION, _loop_of(sch, loops, value))
        for variable, value in zip(realized.block.iter_vars, realized.iter_values, strict=True)
    ]
    steps = [loop for is_step, loop in bound if is_step]
    *_, row = (loop for is_step, loop in bound if not is_step)
    vectors = _vectors(sch, machine, row)
    if vectors:
        piece, vector, lane = sch.split(row, [None, vectors, machine.lanes])
        sch.reorder(piece, *steps, vector, lane)
        sch.unroll(vector)
        sch.vectorize(lane)
    else:
        sch.reorder(*steps, row)
    return steps[0]


def _vectors(sch: Schedule, machine: Machine, row: LoopRV) -> int:
    """Return how many vectors make a piece of a row, the most that divide it; 0 where vectors do not."""
    length = primitives.extent(sch, row) or 1
    return max((count for count in range(1, PIECE + 1) if length % (count * machine.lanes) == 0), default=0)


def _loop_of(sch: Schedule, loops: list[LoopRV], value: Any) -> LoopRV:
    """Return the innermost loop that a value names; the outermost of all where it is a number."""
    names = list(tirx.analysis.undefined_vars(value))
    named = (loop for loop in reversed(loops) if any(sch.get(loop).loop_var.same_as(name) for name in names))
    return next(named, loops[0])


def _groups(sch: Schedule, block: SBlockRV, kept: int) -> list[SBlockRV]:
    """Reduce rows in groups, and then what they leave; return the block of a group, if rows divide into some.

    The error of a sum grows with the longest chain of additions, which is then that of a group or of all groups
    (Higham, Accuracy and Stability of Numerical Algorithms, 4.2).
    """
    loop, *others = sch.get_loops(block)[kept:]
    count = primitives.extent(sch, loop) or 1
    size = max(size for size in range(1, GROUP + 1) if count % size == 0)
    is_sum = isinstance(sch.get(block).body.value, tirx.Add)
    if others or not is_sum or not LEAST_GROUP <= size < count:
        return []
    return [sch.rfactor(sch.split(loop, [None, size])[0], factor_axis=kept - 1)]


def _place(sch: Schedule, made: list[SBlockRV], shared: int, work: int, after: list[SBlockRV]) -> None:
    """Compute the blocks of a result, or of a row of them, together; the first ``shared`` loops are over these."""
    chain: list[Any] = [*made, *after]
    loops = sch.get_loops(chain[-1])[:shared]
    if not loops:
        return
    outer = primitives.fuse(sch, loops)
    for block in reversed(chain[:-1]):
        sch.compute_at(block, outer, preserve_unit_loops=True)
    primitives.parallel_if_worth(sch, outer, work)
