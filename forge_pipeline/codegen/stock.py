"""TVM's own pipelines as a code generator: correct everywhere, fast nowhere on a CPU; the fallback and the yardstick.

On a CPU no kernel has a schedule of its own, so all of them are reported as fallbacks. On a GPU they get dlight's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge_pipeline.codegen.flops import share_by_kernel
from forge_pipeline.codegen.generator import Fallback, Lowered
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target

if TYPE_CHECKING:
    import tvm

LAYOUTS = {
    "first": {"relax.nn.conv2d": ["NCHW", "OIHW"]},
    "last": {"relax.nn.conv2d": ["NHWC", "OHWI"]},
}


def lower(module: tvm.IRModule, target: Target, options: Options) -> Lowered:
    """Return ``module`` as calls of kernels with TVM's default schedules; a row of ``lowering.GENERATORS``."""
    import tvm

    machine = target.tvm()
    with machine, tvm.transform.PassContext(opt_level=options.opt_level):
        module = tvm.transform.Sequential(
            [*graph_passes(options, target.kind), *_kernel_passes(target, machine, options)]
        )(module)
    fallbacks: tuple[Fallback, ...] = ()
    if target.kind == "llvm":
        fallbacks = tuple(
            Fallback(operator=name, shape=shape, share=share) for name, shape, share in share_by_kernel(module)
        )
    return Lowered(module=module, fallbacks=fallbacks, pass_config={})


def graph_passes(options: Options, kind: str) -> list[Any]:
    """Return the passes that ``options`` ask for on the graph of operators."""
    from tvm import relax

    passes: list[Any] = [relax.transform.DecomposeOpsForInference(), relax.transform.CanonicalizeBindings()]
    if options.channel_layout is not None:
        passes.append(relax.transform.ConvertLayout(LAYOUTS[options.channel_layout]))
    if options.float16 and kind == "cuda":  # on a CPU, weights are halves and sums are not: see ``halves``
        passes.append(relax.transform.ToMixedPrecision(out_dtype="float16"))
    if options.opt_level >= 4:
        passes.append(relax.transform.FastMathTransform())
    return passes


def _kernel_passes(target: Target, machine: tvm.target.Target, options: Options) -> list[Any]:
    """Return what turns operators into kernels: one each at level 0, then fused, then with constants folded."""
    from tvm import relax
    from tvm.relax.backend import cpu_generic
    from tvm.relax.backend.cuda import pipeline as cuda

    if target.kind == "cuda":
        return [*cuda.library_dispatch_passes(machine), *cuda.legalize_passes(machine)]
    passes = [*cpu_generic.pipeline.library_dispatch_passes(machine), relax.transform.LegalizeOps()]
    passes.append(relax.transform.AnnotateTIROpPattern())
    if options.opt_level >= 2:
        passes.append(relax.transform.FoldConstant())
    if options.opt_level >= 1:
        passes += [relax.transform.FuseOps(), relax.transform.FuseTIR()]
    return [*passes, relax.transform.DeadCodeElimination()]
