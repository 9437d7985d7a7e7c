"""From kernels as templates and TVM describe them to kernels with loops for the CPU at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import Schedule, ScheduleError

from forge_pipeline.codegen.amx import configuration, rows, step_blocks
from forge_pipeline.codegen.families import FAMILIES, Scheduler
from forge_pipeline.codegen.float32 import elementwise, fallback, row_reduction
from forge_pipeline.codegen.float32.conv.winograd import open_size
from forge_pipeline.codegen.int8.isa.dot_product import tensorize_rest
from forge_pipeline.codegen.int8.x86 import narrow_store, pmaddubsw
from forge_pipeline.codegen.sorting.rows import KERNEL
from forge_pipeline.codegen.tir import (
    flatten_pixels,
    half_sums,
    joined_axes,
    lane_reduction,
    middle_axis,
    open_rows,
    peel_padding,
    primitives,
    reduction,
    rewriting,
    row_blocks,
    transposed_tiles,
)
from forge_pipeline.codegen.tir.edges import edge_tiles, last_tiles, open_edges, skipped_taps, tail_tiles
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.codegen.tir.prefetch.pixels import prefetch_pixels
from forge_pipeline.codegen.tir.prefetch.weights import prefetch_weights

ROOT = "root"
"""The block around a kernel whose loops can be moved; one that TVM wrote with its loops is a single block."""


Rewrite = Callable[["tirx.PrimFunc"], "tirx.PrimFunc"]

REWRITES: tuple[Rewrite, ...] = (
    pmaddubsw.continue_sums,  # masks of the steps that need them
    edge_tiles.specialize,  # tiles at an image's edges are code of their own
    open_edges.specialize,  # and where its size is open
    peel_padding.peel,  # padded copies without tests in their loops
    tail_tiles.pad_tiles,  # conditions around whole tiles, so that the next can put instructions there
    tensorize_rest,  # instructions for what no condition surrounds any more
    row_blocks.even,  # as much for each thread
    tail_tiles.even_blocks,  # of blocks of tiles, too
    tail_tiles.bound_tiles,  # no tile without a pixel
    open_size.bound_groups,  # nor one without a result
    rows.bound_groups,  # nor one without a row
    tail_tiles.shift_tiles,  # nor one that reaches too far
    prefetch_weights,  # the next panel's lines
    prefetch_pixels,  # and the next channels'
    last_tiles.part,  # the last tile of a row, where it is smaller
    transposed_tiles.transpose_tiles,  # copies that exchange axes in registers
    open_rows.by_vectors,  # rows of open length that LLVM leaves to single numbers
    lane_reduction.split_chains,  # sums in lanes where vectors do not divide a row
    half_sums.sum_in_parts,  # sums of halves that are not too long
    step_blocks.in_blocks,  # few steps by all tiles of rows, then the next
    configuration.ask_for_next,  # the next panel of products in tiles
    configuration.configure,  # threads that multiply in tiles
)
"""What is done, in this order, to the loops of every scheduled kernel, since no schedule can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A kernel before its schedule, and what gives it one."""

    kernel: tirx.PrimFunc
    scheduler: Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """A module whose kernels are scheduled; ``generic`` names those left to plain loops, with the reason.

    ``rules`` are what is to be rewritten.
    """

    module: tvm.IRModule
    generic: dict[str, str]
    rules: dict[tvm.ir.GlobalVar, Rule]


def schedule_kernels(module: tvm.IRModule, machine: Machine) -> Scheduled:
    """Schedule every kernel of ``module``."""
    generic: dict[str, str] = {}
    done, rules = {}, {}
    for variable, function in sorted(module.functions_items(), key=lambda item: str(item[0].name_hint)):
        if not isinstance(function, tirx.PrimFunc):
            continue
        if KERNEL in (function.attrs or {}):
            continue
        if function.body.block.name_hint != ROOT:
            done[variable] = function.with_attr("tirx.is_scheduled", True)
            generic[variable.name_hint] = "its loops are TVM's: sorting, or a running sum"
            continue
        kernel = narrow_store.part_whole(rows.by_groups(open_size.by_tiles(flatten_pixels.flatten(function))))
        done[variable], rules[variable], reason = _scheduled(kernel, machine.computing(computed_in(kernel)))
        if reason is not None:
            generic[variable.name_hint] = reason
    return Scheduled(module=rewriting.with_functions(module, done), generic=generic, rules=rules)


def rewrite_kernels(scheduled: Scheduled, machine: Machine) -> Scheduled:
    """Return ``scheduled`` with what schedules cannot do; a kernel that cannot be rewritten gets plain loops."""
    generic, done = dict(scheduled.generic), {}
    for variable, rule in scheduled.rules.items():
        own = machine.computing(computed_in(rule.kernel))
        try:
            done[variable] = _rewritten(scheduled.module[variable], rule, own)
        except _refusals() as error:
            plain = Rule(kernel=rule.kernel, scheduler=fallback.schedule)
            done[variable] = _rewritten(_apply(plain.kernel, plain, own), plain, own)
            generic[variable.name_hint] = _short(error)
    return Scheduled(module=rewriting.with_functions(scheduled.module, done), generic=generic, rules={})


def computed_in(kernel: tirx.PrimFunc) -> str:
    """Return the type in which a kernel computes: that of its family's block, or of its result where it has none."""
    sch = s_tir.Schedule(kernel)
    blocks = [block for block in primitives.blocks(sch) if sch.get(block).writes]
    chosen = [block for block in blocks if primitives.family_of(sch, block) not in ("", primitives.PAD)] or blocks[-1:]
    return str(sch.get(chosen[0]).writes[0].source.ty.dtype) if chosen else ""


def _refusals() -> tuple[type[Exception], ...]:
    """Return how TVM says that a schedule cannot be: what it cannot do is TVM's to find out."""
    return ScheduleError, ValueError, tvm.error.InternalError


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[-200:]


def _scheduled(kernel: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, Rule, str | None]:
    """Return the kernel with its loops, its rule, and why it is generic if it is."""
    scheduler, reason = _pick(s_tir.Schedule(kernel)), "no family knows it"
    if scheduler is not None:
        try:
            if scheduler is elementwise.schedule:
                kernel = joined_axes.join(kernel)
            rule = Rule(kernel=kernel, scheduler=scheduler)
            return _apply(kernel, rule, machine), rule, None
        except _refusals() as error:
            reason = _short(error)
    rule = Rule(kernel=kernel, scheduler=fallback.schedule)
    return _apply(kernel, rule, machine), rule, reason


def _apply(kernel: tirx.PrimFunc, rule: Rule, machine: Machine) -> tirx.PrimFunc:
    sch = s_tir.Schedule(kernel)
    rule.scheduler(sch, machine)
    return sch.mod["main"]


def _rewritten(function: tirx.PrimFunc, rule: Rule, machine: Machine) -> tirx.PrimFunc:
    versions = [_rewrite_loops(function)]
    for most in tail_tiles.SMALLER:
        if tail_tiles.smallest_tile(versions[-1]) > most:
            smaller = _rewrite_loops(_apply(rule.kernel.with_attr(tail_tiles.NARROW, most), rule, machine))
            if tail_tiles.smallest_tile(smaller) <= most:
                versions.append(smaller)
    done, *rest = versions
    done = tail_tiles.choose_version(done, rest)
    done = skipped_taps.skip(done)  # where each tile is known for good
    if rows.may_be_few(rule.kernel) and rule.scheduler is not fallback.schedule:
        done = rows.by_count(done, _rewrite_loops(_apply(rule.kernel.with_attr(rows.FEW, 1), rule, machine)))
    if rule.scheduler is elementwise.schedule:
        for batch, kernel in joined_axes.of_one(rule.kernel):
            single = _rewrite_loops(_apply(joined_axes.join(kernel), rule, machine))
            done = rewriting.either(batch != 1, done, single)
    return narrow_store.pack_stores(done).with_attr("tirx.is_scheduled", True)


def _rewrite_loops(function: tirx.PrimFunc) -> tirx.PrimFunc:
    for rewrite in REWRITES:
        function = rewrite(function)
    return function


def _pick(sch: Schedule) -> Scheduler | None:
    found = primitives.blocks(sch)
    for block in found:
        name = primitives.family_of(sch, block)
        if name in FAMILIES:
            return FAMILIES[name].schedule
    if not any(primitives.is_reduction(sch, block) for block in found):
        return elementwise.schedule
    return next((rule.schedule for rule in (middle_axis, row_reduction, reduction) if rule.applies(sch)), None)
