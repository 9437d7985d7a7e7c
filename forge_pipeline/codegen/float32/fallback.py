"""What no family knows: plain loops, the outer ones over the threads. Every use of it is reported."""

from __future__ import annotations

from tvm.s_tir import Schedule

from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.elementwise_blocks import schedule_elementwise
from forge_pipeline.codegen.tir.machine import Machine


def schedule(sch: Schedule, machine: Machine) -> None:
    """Schedule any kernel made of blocks in loops; correct whatever it computes."""
    for block in primitives.blocks(sch):
        loops = sch.get_loops(block)
        kinds = [int(variable.iter_type) == primitives.REDUCTION for variable in sch.get(block).iter_vars]
        outer = kinds.index(True) if True in kinds else len(loops)
        if len(loops) != len(kinds) or not loops:
            continue
        primitives.starts_apart(sch, block)
        if not outer:
            continue
        if True not in kinds:
            schedule_elementwise(sch, block, machine)
            continue
        work = primitives.product(primitives.extent(sch, loop) for loop in loops)
        primitives.parallel_if_worth(sch, primitives.fuse_where_provable(sch, loops[:outer]), work)
