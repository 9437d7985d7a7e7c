"""The steps of TVM's default pipeline: correct everywhere, fast nowhere on a CPU; the fallback and the yardstick.

On a CPU no kernel has a schedule of its own, so all of them are reported as fallbacks. On a GPU they get dlight's,
and those whose loops are their own get threads.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.relax.backend import cpu_generic
from tvm.relax.backend.cuda import pipeline as cuda
from tvm.s_tir import dlight

from forge_pipeline.codegen.flops import share_by_kernel
from forge_pipeline.codegen.gpu.booleans import one_at_a_time
from forge_pipeline.codegen.gpu.convolution import convolutions
from forge_pipeline.codegen.gpu.guards import Orderly, Tried
from forge_pipeline.codegen.gpu.indices import narrowed
from forge_pipeline.codegen.gpu.matmul import matmuls
from forge_pipeline.codegen.gpu.products import Products, processors_of
from forge_pipeline.codegen.gpu.sums import SHORT, Sums
from forge_pipeline.codegen.gpu.threads import in_threads
from forge_pipeline.codegen.layout.as_computed import as_computed
from forge_pipeline.codegen.layout.bounds import bounds
from forge_pipeline.codegen.layout.compose import SpellOutGroupNorm
from forge_pipeline.codegen.layout.fusion import close_open_kernels, know_other_sizes
from forge_pipeline.codegen.layout.symbolic_extents import has_casts, name_extents
from forge_pipeline.codegen.layout.views import open_reshapes
from forge_pipeline.codegen.options import Options
from forge_pipeline.codegen.step import Fallback, Lowering
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.target import Target

LAYOUTS = {
    "first": {"relax.nn.conv2d": ["NCHW", "OIHW"]},
    "last": {"relax.nn.conv2d": ["NHWC", "OHWI"]},
}


def graph(work: Lowering) -> None:
    """Run the passes on the graph of operators."""
    for entry in work.entries:
        if not entry.extents and not has_casts(entry.module):
            entry.module = relax.transform.CanonicalizeBindings()(entry.module)
        if entry.extents is None:
            entry.module = name_extents(entry.module, work.origins)
    _run(work, _graph_passes(work.options, work.target.kind))


def kernels(work: Lowering) -> None:
    """Turn operators into kernels with TVM's default schedules."""
    _run(work, _kernel_passes(work.target, work.target.tvm(), work.options))
    if work.target.kind == "cuda":
        for entry in work.entries:
            entry.module = one_at_a_time(in_threads(narrowed(entry.module)))
    if work.target.kind == "llvm":
        for entry in work.entries:
            entry.module = _with_starts(entry.module)
        work.fallbacks = tuple(
            Fallback(operator=name, shape=shape, share=share)
            for entry in work.entries
            for name, shape, share in share_by_kernel(entry.module)
        )


def _with_starts(module: tvm.IRModule) -> tvm.IRModule:
    """Return ``module`` with kernels whose sums over nothing are what sums start from; a GPU's schedules see to it."""
    changed = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            sch = s_tir.Schedule(function)
            apart = [primitives.starts_apart(sch, block) for block in primitives.blocks(sch)]
            if any(apart):
                changed[variable] = sch.mod["main"]
    return changed


def _run(work: Lowering, passes: list[Any]) -> None:
    with work.target.tvm(), tvm.transform.PassContext(opt_level=work.options.opt_level):
        for entry in work.entries:
            entry.module = tvm.transform.Sequential(passes)(entry.module)


def _graph_passes(options: Options, kind: str) -> list[Any]:
    """Return the passes that ``options`` ask for on the graph of operators."""
    passes: list[Any] = [
        SpellOutGroupNorm(),
        relax.transform.DecomposeOpsForInference(),
    ]
    if options.channel_layout is not None:
        passes.append(relax.transform.ConvertLayout(LAYOUTS[options.channel_layout]))
    if options.float16 and kind == "cuda":  # on a CPU, weights are halves and sums are not: see ``halves``
        passes.append(relax.transform.ToMixedPrecision(out_dtype="float16"))
    if options.opt_level >= 4:
        passes.append(relax.transform.FastMathTransform())
    return passes


def _kernel_passes(target: Target, machine: tvm.target.Target, options: Options) -> list[Any]:
    """Return what turns operators into kernels: one each at level 0, then fused, then with constants folded."""
    if target.kind == "cuda":
        _, annotate, *fused, _ = cuda.legalize_passes(machine)
        gpu, processors = dlight.gpu, processors_of(str(target.cuda_arch))
        rows, groups = Tried(gpu.Reduction()), Tried(gpu.GeneralReduction())
        products = (Products(), Tried(gpu.Matmul()), Orderly(gpu.GEMV()))
        schedules = (*products, Sums(SHORT), rows, groups, Sums(), Tried(gpu.Fallback()))
        return [
            *cuda.library_dispatch_passes(machine),
            relax.transform.LegalizeOps(
                {**open_reshapes(), **as_computed(), **convolutions(processors), **matmuls(processors)}
            ),
            annotate,
            tvm.transform.module_pass(_kept_apart, opt_level=0),
            *fused,
            dlight.ApplyDefaultSchedule(*schedules),
        ]
    passes = [
        *cpu_generic.pipeline.library_dispatch_passes(machine),
        relax.transform.LegalizeOps({**bounds(), **as_computed()}),
    ]
    passes.append(relax.transform.AnnotateTIROpPattern())
    if options.opt_level >= 2:
        passes.append(relax.transform.FoldConstant())
    if options.opt_level >= 1:
        passes += [relax.transform.FuseOps(), relax.transform.FuseTIR()]
    return [*passes, relax.transform.DeadCodeElimination()]


def _kept_apart(module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Return ``module`` in which TVM fuses no kernels that it could not schedule for a GPU."""
    return close_open_kernels(know_other_sizes(module, smaller=True))
