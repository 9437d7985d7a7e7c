"""What no family knows: plain loops, the outer ones over the threads. Every use of it is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_pipeline.codegen.schedules import moves

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

    from forge_pipeline.codegen.machine import Machine


def schedule(sch: Schedule, machine: Machine) -> None:
    """Schedule any kernel made of blocks in loops; correct whatever it computes."""
    for block in moves.blocks(sch):
        loops = sch.get_loops(block)
        kinds = [int(variable.iter_type) == moves.REDUCTION for variable in sch.get(block).iter_vars]
        outer = kinds.index(True) if True in kinds else len(loops)
        if len(loops) != len(kinds) or not outer:
            continue
        if True not in kinds:
            moves.spread(sch, block, machine)
            continue
        work = moves.product(moves.extent(sch, loop) for loop in loops)
        moves.parallel_if_worth(sch, moves.fuse(sch, loops[:outer]), work)
