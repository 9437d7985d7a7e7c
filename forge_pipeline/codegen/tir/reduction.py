"""Sums, maxima and the like that leave fewer numbers: over neighbours in vector lanes, over rows of others row by row.

Over the axis whose numbers are neighbours in memory, each lane reduces every so many of them, and the lanes are put
together at the end: as many numbers as lanes divide, since TVM forgets what bounds the last ones. Over any other axis,
rows of results are updated by rows of numbers, all extents open or not; LLVM makes vectors of open ones.
"""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine

VECTORS = (4, 2, 1, 0.5, 0.25)
"""Vectors of partial results side by side, the first that divide the numbers: four hide the latency of additions."""


def applies(sch: Schedule) -> bool:
    """Return whether a kernel makes one reduction, of one tensor whose neighbours in memory one of its loops visits."""
    found = [block for block in primitives.blocks(sch) if primitives.is_reduction(sch, block)]
    if len(found) != 1 or len(sch.get(found[0]).writes) != 1:
        return False
    if any(primitives.is_select(sch, block) for block in primitives.ancestors(sch, found[0])):
        return False
    return len(sch.get_loops(found[0])) == len(sch.get(found[0]).iter_vars) and _along(sch, found[0]) is not None


def schedule(sch: Schedule, machine: Machine) -> None:
    """Make what is reduced where it is read, and what follows where a result is ready."""
    (block,) = (block for block in primitives.blocks(sch) if primitives.is_reduction(sch, block))
    before = primitives.ancestors(sch, block)
    for producer in before:
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
    first, *others = (primitives.extent(sch, loop) for loop in sch.get_loops(block))
    return primitives.product([first or 1, *(primitives.UNKNOWN if item is None else item for item in others)])


def _reduce_lanes(sch: Schedule, machine: Machine, block: SBlockRV, along: int, after: list[SBlockRV]) -> None:
    kept, work, loop = _kept(sch, block), _work(sch, block), sch.get_loops(block)[along]
    widths = [int(machine.lanes * vectors) for vectors in VECTORS]
    width = next((width for width in widths if primitives.static(sch, loop) % width == 0), 0)
    if not width or not primitives.static(sch, loop):
        raise ValueError("numbers that fill no vectors")
    partial = sch.rfactor(sch.split(loop, [None, width])[1], factor_axis=kept)
    _place(sch, [partial, block], kept, work, after)
    loops = sch.get_loops(partial)
    lane = loops.pop(1 if kept else -1)  # rfactor puts it first, but where a loop runs it with what reads it
    sch.reorder(*loops[-(len(sch.get(partial).iter_vars) - kept - 1) :], lane)
    loops = [*loops, lane]
    steps = loops[-(len(sch.get(partial).iter_vars) - kept) : -1]
    _vectorize(sch, lane, width, machine)
    start = sch.decompose_reduction(partial, steps[0])
    _vectorize(sch, sch.get_loops(start)[-1], width, machine)
    sch.decompose_reduction(block, sch.get_loops(block)[1 if kept else 0])


def _vectorize(sch: Schedule, loop: LoopRV, width: int, machine: Machine) -> None:
    outer, inner = sch.split(loop, [None, min(width, machine.lanes)])
    sch.unroll(outer)
    sch.vectorize(inner)


def _reduce_rows(sch: Schedule, machine: Machine, block: SBlockRV, along: int, after: list[SBlockRV]) -> None:
    kept, work = _kept(sch, block), _work(sch, block)
    if along != kept - 1:
        raise ValueError("results do not lie as what they are made of")
    steps = len(sch.get(block).iter_vars) - kept
    _place(sch, [block], kept - 1, work, after)
    row, *others = sch.get_loops(block)[-(steps + 1) :]
    sch.reorder(*others, row)
    if (primitives.extent(sch, row) or 1) % machine.lanes == 0:
        sch.vectorize(sch.split(row, [None, machine.lanes])[1])
    sch.decompose_reduction(block, others[0])


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
