"""The steps of the CPU code generator: blocked layouts, packed weights, tiles that the target decides; no tuning."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import tvm
from tvm import relax, s_tir, tirx
from tvm.relax.backend import cpu_generic

from forge_pipeline.codegen.families import ANCHORS
from forge_pipeline.codegen.float32 import concat, nearest, pad, weight_decode
from forge_pipeline.codegen.float32.conv.convolution_pairs import pair_convolutions
from forge_pipeline.codegen.float32.conv.grouped_products import grouped_products
from forge_pipeline.codegen.float32.conv.winograd import weights
from forge_pipeline.codegen.flops import share_by_kernel
from forge_pipeline.codegen.int8.ops import attention_kernel, panels
from forge_pipeline.codegen.int8.report import float_kernels, is_quantized
from forge_pipeline.codegen.layout.as_computed import as_computed
from forge_pipeline.codegen.layout.batch_of_one import SUFFIX, batch_of_one
from forge_pipeline.codegen.layout.bounds import bounds
from forge_pipeline.codegen.layout.compose import SpellOutGroupNorm
from forge_pipeline.codegen.layout.fusion import (
    FUSABLE_OUTPUT,
    OPAQUE,
    PATTERN,
    close_open_kernels,
    cut_chains,
    grouped,
    know_other_sizes,
    part_broadcasts,
    store_bytes,
)
from forge_pipeline.codegen.layout.half_arithmetic import in_halves
from forge_pipeline.codegen.layout.half_precision import refuse_quantized
from forge_pipeline.codegen.layout.signed_to_unsigned import without_signs
from forge_pipeline.codegen.layout.symbolic_extents import has_casts, name_extents
from forge_pipeline.codegen.layout.typical_extents import typical_extents
from forge_pipeline.codegen.layout.views import open_reshapes
from forge_pipeline.codegen.layout_pass import lay_out
from forge_pipeline.codegen.memory.prepack import PREPARES
from forge_pipeline.codegen.schedule_kernels import rewrite_kernels, schedule_kernels
from forge_pipeline.codegen.sorting.rows import KERNEL
from forge_pipeline.codegen.step import Entry, Fallback, Lowering
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.errors import CompileError, ConfigError

FUSED, LAID_OUT, REARRANGED, APPROXIMATE = 1, 2, 3, 4
"""The optimisation levels from which on kernels are fused; constants are folded into packed weights; sums are made of
other products (Winograd); exp, tanh and the like are approximated. Below the second, convolutions are plain loops."""

CLOSED = (
    attention_kernel.NAME,
    attention_kernel.SOFTMAX,
    attention_kernel.ATTENTION,
    panels.PACK,
    panels.SUMS,
    nearest.NAME,
    nearest.SPREAD,
    pad.NAME,
)
"""Families whose kernels nothing is fused with."""
PREPARED = (weights.NAME, weight_decode.NAME)
"""Families of kernels that run once, when a library is loaded, where they read weights alone."""

KEPT = ("relax.call_tir", "relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten", "relax.memory.view")
"""Operators that need no kernel: what reads a value in another shape, and calls of kernels."""

PASS_CONFIG = {"s_tir.LoopPartition": {"partition_const_loop": True}}


def add_batch_of_one(work: Lowering) -> None:
    """Copy each entry for a batch of one where its batch is symbolic; what leads a cache is no batch."""
    if work.program is not None or any(state.axis is not None for state in work.states):
        return
    copies = []
    for entry in work.entries:
        single = batch_of_one(entry.module, entry.extents)
        if single is not None:
            module, extents, sizes = single
            name = f"{entry.function}{SUFFIX}"
            work.origins.carry(entry.module, module)
            copies.append(Entry(module=module, extents=extents, function=name, sizes={**entry.sizes, **sizes}))
    work.entries += copies


def _on_each(change: Callable[[Lowering, Entry], None]) -> Callable[[Lowering], None]:
    """Return the step that does ``change`` to each entry, in TVM's context for the target."""

    @wraps(change)
    def run(work: Lowering) -> None:
        with work.target.tvm(), tvm.transform.PassContext(opt_level=3):
            for entry in work.entries:
                change(work, entry)

    return run


@_on_each
def simplify_graph(work: Lowering, entry: Entry) -> None:
    """Bring the graph into the form that the families expect."""
    module = entry.module
    entry.is_quantized = is_quantized(module)
    if entry.is_quantized and work.options.channel_layout == "last":
        raise ConfigError(
            where="compile.set_channel_layout",
            expected="null or first: integer kernels keep channels in blocks of a vector",
            found="last, for a quantized model",
            fix="leave it null, or compile with `compile.generator=stock`",
        )
    keeps_casts = has_casts(module)
    if not keeps_casts and not entry.extents:
        module = relax.transform.CanonicalizeBindings()(module)
        work.origins.carry(entry.module, module)
    if work.options.opt_level >= LAID_OUT:
        module = without_signs(module, work.origins)
    arithmetic = work.options.float_arithmetic
    if arithmetic != "float32" and entry.is_quantized:
        raise refuse_quantized(arithmetic)
    if arithmetic == "float16":
        module = in_halves(module, work.origins)
    if arithmetic == "float32" and work.options.opt_level >= LAID_OUT and not entry.is_quantized:
        module = grouped_products(module, work.machine.lanes, work.origins)
    entry.module = name_extents(module, work.origins) if entry.extents is None else module
    entry.keeps_names = keeps_casts or entry.module is not module or bool(entry.extents)


@_on_each
def choose_layouts(work: Lowering, entry: Entry) -> None:
    """Have the families emit their kernels, and mark what may be fused into them."""
    options = work.options
    if options.opt_level >= LAID_OUT:
        entry.module = mark_anchors(
            lay_out(
                entry.module,
                work.machine,
                work.origins,
                rearranges=options.opt_level >= REARRANGED,
                channels_last=options.channel_layout == "last",
                typical=typical_extents(entry.module, entry.extents or ()),
            )
        )
    entry.keeps_names = entry.keeps_names or has_casts(entry.module)


@_on_each
def legalize(work: Lowering, entry: Entry) -> None:
    """Make kernels of the operators that are left."""
    passes = [
        SpellOutGroupNorm(),
        relax.transform.DecomposeOpsForInference(),
        *([] if entry.keeps_names else [relax.transform.CanonicalizeBindings()]),
        *([relax.transform.FastMathTransform()] if work.options.opt_level >= APPROXIMATE else []),
        *cpu_generic.pipeline.library_dispatch_passes(work.target.tvm()),  # sorting and running sums
        relax.transform.LegalizeOps({**open_reshapes(), **bounds(), **as_computed()}),
        relax.transform.DeadCodeElimination(),  # such as transpositions that a kernel reads through
    ]
    entry.module = tvm.transform.Sequential(passes)(entry.module)


@_on_each
def fuse(work: Lowering, entry: Entry) -> None:
    """Fuse kernels. Raises CompileError for an operator that is none by now."""
    module = close_open_kernels(know_other_sizes(relax.transform.AnnotateTIROpPattern()(entry.module)))
    if work.options.opt_level >= FUSED:
        apart = part_broadcasts(cut_chains(module))
        groups = grouped(apart)
        work.origins.fused(apart, groups)
        paired = pair_convolutions(groups, work.machine, work.origins)
        module = relax.transform.FuseTIR()(paired)
        work.origins.carry(paired, module)
    entry.module = relax.transform.DeadCodeElimination()(module)
    entry.calls = work.origins.of_calls(entry.module)
    _refuse_leftovers(entry.module)


@_on_each
def schedule(work: Lowering, entry: Entry) -> None:
    """Give every kernel its loops."""
    entry.fused, entry.scheduled = entry.module, schedule_kernels(entry.module, work.machine)
    entry.module = entry.scheduled.module


@_on_each
def rewrite(work: Lowering, entry: Entry) -> None:
    """Finish the kernels, and note those that are slow."""
    if entry.fused is None or entry.scheduled is None:
        raise ValueError("kernels are scheduled before they are rewritten")
    done = rewrite_kernels(entry.scheduled, work.machine)
    slow = done.generic.keys() | (float_kernels(entry.fused) if entry.is_quantized else set())
    work.fallbacks += tuple(
        Fallback(operator=name, shape=shape, share=share)
        for name, shape, share in share_by_kernel(entry.fused)
        if name in slow
    )
    work.pass_config = PASS_CONFIG
    entry.module, entry.fused, entry.scheduled = done.module, None, None


def _refuse_leftovers(module: tvm.IRModule) -> None:
    """Raise CompileError for an operator that TVM could not make a kernel of."""
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            name = getattr(call.op, "name", "") if isinstance(call, relax.Call) else ""
            if name and name not in KEPT:
                shapes = ", ".join(str(getattr(operand.ty, "shape", "?")) for operand in call.args)
                raise CompileError(
                    where=f"lowering of {call.op.name}",
                    expected="operands whose shapes TVM can prove to go together",
                    found=shapes,
                    fix="give extents that are equal one name in the model, or fix them to numbers",
                )


def mark_anchors(module: tvm.IRModule) -> tvm.IRModule:
    """Tell TVM's fusion what it may fuse into a kernel that a family made."""
    module, anchors = module.clone(), set[str]()
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            if KERNEL in (function.attrs or {}):
                module[variable] = function.with_attr(PATTERN, OPAQUE)
                continue
            sch = s_tir.Schedule(function)
            families = {primitives.family_of(sch, block) for block in primitives.blocks(sch)}
            if not families.isdisjoint(PREPARED):
                module[variable] = function.with_attr(PATTERN, OPAQUE).with_attr(PREPARES, True)
            elif not families.isdisjoint(CLOSED):
                module[variable] = function.with_attr(PATTERN, OPAQUE)
            elif families == {concat.NAME}:
                module[variable] = function.with_attr(concat.IS_CONCAT, True)
            elif not families.isdisjoint(ANCHORS):
                module[variable] = function.with_attr(PATTERN, FUSABLE_OUTPUT)
                anchors.add(variable.name_hint)
    return store_bytes(module, frozenset(anchors))
