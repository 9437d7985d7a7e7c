"""The CPU code generator: blocked layouts, packed weights, register tiles from the target's description; no tuning."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from forge_pipeline.codegen import stock
from forge_pipeline.codegen.families import ANCHORS
from forge_pipeline.codegen.float32 import concat, weight_decode, winograd_weight
from forge_pipeline.codegen.flops import share_by_kernel
from forge_pipeline.codegen.generator import Fallback, Lowered
from forge_pipeline.codegen.int8.ops import attention_kernel
from forge_pipeline.codegen.int8.report import float_kernels, is_quantized
from forge_pipeline.codegen.layout.batch_of_one import ENTRY, batch_of_one, join
from forge_pipeline.codegen.layout.fusion import FUSABLE_OUTPUT, OPAQUE, PATTERN, cut_chains, store_bytes
from forge_pipeline.codegen.layout.signed_to_unsigned import without_signs
from forge_pipeline.codegen.layout.symbolic_extents import name_extents
from forge_pipeline.codegen.layout_pass import lay_out
from forge_pipeline.codegen.memory.prepack import PREPARES
from forge_pipeline.codegen.options import Options
from forge_pipeline.codegen.schedule_kernels import schedule_kernels
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.errors import CompileError, ConfigError
from forge_pipeline.target import Target

if TYPE_CHECKING:
    import tvm

FUSED, LAID_OUT, REARRANGED, APPROXIMATE = 1, 2, 3, 4
"""The optimisation levels from which on kernels are fused; constants are folded into packed weights; sums are made of
other products (Winograd); exp, tanh and the like are approximated. Below the second, convolutions are plain loops."""

CLOSED = (attention_kernel.SOFTMAX, attention_kernel.SUMS)
"""Families whose kernels nothing is fused with."""
PREPARED = (winograd_weight.NAME, weight_decode.NAME)
"""Families of kernels that run once, when a library is loaded, where they read weights alone."""

BROADCAST = tuple(
    f"relax.{name}"
    for name in (
        *("add", "subtract", "multiply", "divide", "floor_divide", "mod", "power", "maximum", "minimum", "where"),
        *("equal", "not_equal", "greater", "greater_equal", "less", "less_equal"),
        *("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"),
    )
)
"""Operators that are left as they are where the shapes of their operands are not known to go together."""

PASS_CONFIG = {"s_tir.LoopPartition": {"partition_const_loop": True}}


def lower(module: tvm.IRModule, target: Target, options: Options) -> Lowered:
    """Return ``module`` as calls of scheduled kernels; a row of ``lowering.GENERATORS``.

    Where the batch is symbolic, there is an entry for a batch of one beside `main`. A model with branches goes TVM's
    own way whole, and every kernel of it is a fallback.
    """
    if _branches(module):
        return stock.lower(module, target, options)
    lowered = _lower(module, target, options)
    single = batch_of_one(module)
    if single is None:
        return lowered
    other = _lower(single, target, options)
    return Lowered(
        module=join(lowered.module, other.module),
        fallbacks=(*lowered.fallbacks, *other.fallbacks),
        pass_config=PASS_CONFIG,
        single=ENTRY,
    )


def _branches(module: tvm.IRModule) -> bool:
    """Return whether `main` has an If."""
    from tvm import relax

    return any(
        isinstance(binding.value, relax.If) for block in module["main"].body.blocks for binding in block.bindings
    )


def _lower(module: tvm.IRModule, target: Target, options: Options) -> Lowered:
    import tvm
    from tvm import relax
    from tvm.relax.backend import cpu_generic

    machine = replace(Machine.of(target), amx=options.amx)
    quantized, level = is_quantized(module), options.opt_level
    if quantized and options.channel_layout == "last":
        raise ConfigError(
            where="compile.set_channel_layout",
            expected="null or first: integer kernels keep channels in blocks of a vector",
            found="last, for a quantized model",
            fix="leave it null, or compile with `compile.generator=stock`",
        )
    with target.tvm(), tvm.transform.PassContext(opt_level=3):
        has_casts = _has_casts(module)
        if not has_casts:
            module = relax.transform.CanonicalizeBindings()(module)
        if level >= LAID_OUT:
            module = without_signs(module)
        named = name_extents(module)
        # It would take the names away, and casts of one name to another with them.
        tidy = [relax.transform.CanonicalizeBindings()] if named is module and not has_casts else []
        module = named
        if level >= LAID_OUT:
            module = mark_anchors(
                lay_out(module, machine, rearranges=level >= REARRANGED, channels_last=options.channel_layout == "last")
            )
        passes = [
            relax.transform.DecomposeOpsForInference(),
            *tidy,
            *([relax.transform.FastMathTransform()] if level >= APPROXIMATE else []),
            *cpu_generic.pipeline.library_dispatch_passes(target.tvm()),  # sorting and running sums
            relax.transform.LegalizeOps(),
            relax.transform.DeadCodeElimination(),  # such as transpositions that a kernel reads through
            relax.transform.AnnotateTIROpPattern(),
        ]
        module = tvm.transform.Sequential(passes)(module)
        if level >= FUSED:
            module = tvm.transform.Sequential([relax.transform.FuseOps(), relax.transform.FuseTIR()])(
                cut_chains(module)
            )
        module = relax.transform.DeadCodeElimination()(module)
        _refuse_leftovers(module)
        rows = share_by_kernel(module)
        scheduled = schedule_kernels(module, machine)
        slow = scheduled.generic.keys() | (float_kernels(module) if quantized else set())
    fallbacks = tuple(Fallback(operator=name, shape=shape, share=share) for name, shape, share in rows if name in slow)
    return Lowered(module=scheduled.module, fallbacks=fallbacks, pass_config=PASS_CONFIG)


def _refuse_leftovers(module: tvm.IRModule) -> None:
    """Raise CompileError for an operator on several tensors that TVM could not make a kernel of."""
    from tvm import relax

    for block in module["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call) and getattr(call.op, "name", "") in BROADCAST:
                shapes = ", ".join(str(getattr(operand.ty, "shape", "?")) for operand in call.args)
                raise CompileError(
                    where=f"lowering of {call.op.name}",
                    expected="operands whose shapes TVM can prove to go together",
                    found=shapes,
                    fix="give extents that are equal one name in the model, or fix them to numbers",
                )


def _has_casts(module: tvm.IRModule) -> bool:
    from tvm import relax

    bindings = (binding for block in module["main"].body.blocks for binding in block.bindings)
    return any(isinstance(binding, relax.MatchCast) for binding in bindings)


def mark_anchors(module: tvm.IRModule) -> tvm.IRModule:
    """Tell TVM's fusion what it may fuse into a kernel that a family made."""
    from tvm import s_tir, tirx

    module, anchors = module.clone(), set[str]()
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            sch = s_tir.Schedule(function)
            families = {primitives.family_of(sch, block) for block in primitives.blocks(sch)}
            if not families.isdisjoint(PREPARED):
                module[variable] = function.with_attr(PATTERN, OPAQUE).with_attr(PREPARES, True)
            elif not families.isdisjoint(CLOSED):
                module[variable] = function.with_attr(PATTERN, OPAQUE)
            elif families == {concat.NAME}:
                module[variable] = function.with_attr(concat.JOINS, True)
            elif not families.isdisjoint(ANCHORS):
                module[variable] = function.with_attr(PATTERN, FUSABLE_OUTPUT)
                anchors.add(variable.name_hint)
    return store_bytes(module, frozenset(anchors))
