"""Softmax, normalization and means along the last axis: a row at a time on a thread, partial sums in vector lanes."""

from __future__ import annotations

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine


def applies(sch: Schedule) -> bool:
    """Return whether a kernel reduces rows only, and ends with a block that runs over the rows again."""
    found = primitives.blocks(sch)
    reductions = [block for block in found if primitives.is_reduction(sch, block)]
    if not reductions or primitives.is_reduction(sch, found[-1]):
        return False
    rows = len(sch.get_loops(reductions[0])) - 1
    length = primitives.extent(sch, sch.get_loops(reductions[0])[-1])
    if rows < 1 or length is None:
        return False
    for block in reductions:
        kinds = [int(variable.iter_type) == primitives.REDUCTION for variable in sch.get(block).iter_vars]
        loops = sch.get_loops(block)
        if kinds != [False] * rows + [True] or primitives.extent(sch, loops[-1]) != length:
            return False
    return len(sch.get_loops(found[-1])) == rows + 1


def schedule(sch: Schedule, machine: Machine) -> None:
    """Compute everything that a row needs while that row is in the first cache."""
    lanes = machine.lanes
    reductions = [block for block in primitives.blocks(sch) if primitives.is_reduction(sch, block)]
    rows = len(sch.get_loops(reductions[0])) - 1
    length = primitives.static(sch, sch.get_loops(reductions[0])[-1])
    partial = set()
    if length % lanes == 0:
        for block in reductions:
            if len(sch.get(block).writes) == 1:
                _, lane = sch.split(sch.get_loops(block)[-1], [None, lanes])
                partial.add(sch.get(sch.rfactor(lane, factor_axis=rows)).name_hint)
    found = primitives.blocks(sch)
    last = found[-1]
    work = primitives.product(primitives.extent(sch, loop) for loop in sch.get_loops(last))
    shared = primitives.fuse(sch, sch.get_loops(last)[:rows])
    for block in reversed(found[:-1]):
        sch.compute_at(block, shared, preserve_unit_loops=True)
    primitives.parallel_if_worth(sch, shared, 4 * work)
    for block in primitives.blocks(sch):
        _vectorize(sch, block, lanes, is_partial=sch.get(block).name_hint in partial)


def _vectorize(sch: Schedule, block: SBlockRV, lanes: int, *, is_partial: bool) -> None:
    loops = sch.get_loops(block)[1:]
    if not loops:
        return
    if is_partial:
        lane = next(loop for loop in loops if primitives.extent(sch, loop) == lanes)  # rfactor puts the lane first
        name = sch.get(lane).loop_var.name
        outer = [loop for loop in loops if sch.get(loop).loop_var.name != name and primitives.extent(sch, loop) != 1]
        if outer:
            sch.reorder(*outer, lane)
        sch.vectorize(lane)
    elif not primitives.is_reduction(sch, block):
        length = primitives.extent(sch, loops[-1])
        if length is not None and length > 1 and length % lanes == 0:
            inner = sch.split(loops[-1], [None, lanes])[1] if length > lanes else loops[-1]
            sch.vectorize(inner)
