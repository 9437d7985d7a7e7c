"""From kernels as templates and TVM describe them to kernels with loops for the CPU at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge_pipeline.codegen.families import FAMILIES, Scheduler
from forge_pipeline.codegen.float32 import elementwise, fallback, row_reduction
from forge_pipeline.codegen.int8.isa.dot_product import tensorize_rest
from forge_pipeline.codegen.int8.x86 import narrow_store, pmaddubsw
from forge_pipeline.codegen.tir import flatten_pixels, peel_padding, primitives, tail_tiles
from forge_pipeline.codegen.tir.machine import Machine

if TYPE_CHECKING:
    import tvm
    from tvm import tirx
    from tvm.s_tir import Schedule


ROOT = "root"
"""The block around a kernel whose loops can be moved; one that TVM wrote with its loops is a single block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """A module whose kernels are scheduled; ``generic`` names those left to plain loops, with the reason."""

    module: tvm.IRModule
    generic: dict[str, str]


def schedule_kernels(module: tvm.IRModule, machine: Machine) -> Scheduled:
    """Schedule every kernel of ``module``."""
    from tvm import tirx

    generic: dict[str, str] = {}
    done = {}
    for variable, function in sorted(module.functions_items(), key=lambda item: str(item[0].name_hint)):
        if isinstance(function, tirx.PrimFunc):
            done[variable], reason = _schedule(function, machine)
            if reason is not None:
                generic[variable.name_hint] = reason
    module = module.clone()
    for variable, function in done.items():
        module[variable] = function
    return Scheduled(module=module, generic=generic)


def _schedule(function: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str | None]:
    """Return the scheduled kernel, and why it is generic if it is."""
    from tvm import s_tir
    from tvm.s_tir import ScheduleError

    if function.body.block.name_hint != ROOT:
        return function.with_attr("tirx.is_scheduled", True), "its loops are TVM's: sorting, or a running sum"
    function = flatten_pixels.flattened(function)
    scheduler = _pick(s_tir.Schedule(function))
    reason = "no family knows it"
    if scheduler is not None:
        try:
            return _apply(function, scheduler, machine), None
        except (
            ScheduleError,
            ValueError,
        ) as error:  # what a schedule cannot do is TVM's to find out: reported, and served
            reason = " ".join(str(error).split())[-200:]
    return _apply(function, fallback.schedule, machine), reason


def _pick(sch: Schedule) -> Scheduler | None:
    found = primitives.blocks(sch)
    for block in found:
        name = primitives.family_of(sch, block)
        if name in FAMILIES:
            return FAMILIES[name].schedule
    if not any(primitives.is_reduction(sch, block) for block in found):
        return elementwise.schedule
    return row_reduction.schedule if row_reduction.applies(sch) else None


def _apply(function: tirx.PrimFunc, scheduler: Scheduler, machine: Machine) -> tirx.PrimFunc:
    done = _scheduled(function, scheduler, machine)
    if tail_tiles.is_open(done):
        narrow = _scheduled(function.with_attr(tail_tiles.NARROW, True), scheduler, machine)
        done = tail_tiles.closed(done, narrow)
    return narrow_store.packed(done).with_attr("tirx.is_scheduled", True)


def _scheduled(function: tirx.PrimFunc, scheduler: Scheduler, machine: Machine) -> tirx.PrimFunc:
    from tvm import s_tir

    sch = s_tir.Schedule(function)
    scheduler(sch, machine)
    done = peel_padding.peeled(pmaddubsw.continued(sch.mod["main"]))
    return tail_tiles.bounded(tensorize_rest(tail_tiles.overrun(done)))
