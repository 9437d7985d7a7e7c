"""From a scheduled kernel to machine code: TVM's passes and ours, in their order."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import transform as scheduled
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.tirx import transform as plain
from tvm.tirx.compilation_pipeline import PIPELINE_MAP

from forge_pipeline.codegen.tir import bfloat16_pairs, rewriting
from forge_pipeline.codegen.tir.divisions import towards_zero
from forge_pipeline.codegen.tir.lowering import allocations, local_buffers, loop_guards, register_tiles, scalar_loops
from forge_pipeline.codegen.tir.lowering.argument_checks import without_checks
from forge_pipeline.codegen.tir.math import nested_calls
from forge_pipeline.target import Target

PIPELINE = "forge"
"""What TVM calls it."""


@cache
def install() -> None:
    """Make the pipeline known to TVM, in this process, from now on."""
    PIPELINE_MAP[PIPELINE] = _pipeline


def build(module: tvm.IRModule, target: Target) -> Any:
    """Return the machine code of kernels alone."""
    install()
    return tvm.tirx.build(module, target=target.tvm(), pipeline=PIPELINE)


def _pipeline() -> tuple[Any, Callable[[], Any], Callable[[], Any]]:
    others, finalize_host, finalize_device = default_s_tir_pipeline()
    own = _functions(
        without_checks, bfloat16_pairs.with_instructions, scalar_loops.kept_scalar, towards_zero, nested_calls.in_steps,
        local_buffers.kept, loop_guards.depending, _uncalled,
    )  # fmt: skip
    ours = _for_processors()

    def lower(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
        is_bound = any(
            loop.kind == tirx.ForKind.THREAD_BINDING
            for function in module.functions.values()
            for loop in rewriting.loops(function.body)
        )
        return (others if is_bound else ours)(module)

    lowered = tvm.transform.module_pass(lower, opt_level=0, name="forge.lower")
    return lowered, lambda: tvm.transform.Sequential([*own, finalize_host()]), finalize_device


def _functions(*passes: Callable[[Any, Any, Any], Any]) -> list[Any]:
    return [tvm.tirx.transform.prim_func_pass(each, opt_level=0) for each in passes]


def _for_processors() -> Any:
    """Return TVM's passes from schedules to code, without those for GPUs and those that find nothing to do here."""
    return tvm.transform.Sequential([
        *_functions(register_tiles.taken, allocations.in_place),
        scheduled.CanonicalizeLoop(),
        scheduled.LowerInitBlock(),
        scheduled.PlanAndUpdateBufferAllocationLocation(),
        scheduled.ConvertBlocksToOpaque(),
        scheduled.CompactBufferAllocation(),
        *_functions(register_tiles.put),
        scheduled.LowerMatchBuffer(),
        scheduled.StmtSimplify(),
        scheduled.AnnotateIrregularLoop(),
        scheduled.LowerOpaqueBlock(),
        plain.FlattenBuffer(),
        plain.BF16ComputeLegalize(),
        plain.NarrowDataType(32),
        scheduled.LoopPartition(),
        plain.VectorizeLoop(True),
        plain.ConvertSSA(),  # blocks of clones share their variables
        plain.StorageRewrite(),
        plain.StmtSimplify(),  # of what loops were parted into
        plain.UnrollLoop(),
        scheduled.RenormalizeSplitPattern(),
        plain.StmtSimplify(),
        scheduled.RewriteUnsafeSelect(),
        plain.CommonSubexprElim(),
        plain.FP8ComputeLegalize(),
        plain.VerifyMemory(),
        plain.AnnotateEntryFunc(),
        plain.SplitHostDevice(),
        plain.MakePackedAPI(),
        plain.FP8StorageLegalize(),
        plain.BF16StorageLegalize(),
    ])  # fmt: skip


def _uncalled(function: Any, _module: Any, _context: Any) -> Any:
    """Return a kernel that is alone in its module without what TVM marks such a one by: it would have a copy of it."""
    return function.without_attr("tirx.is_entry_func")
