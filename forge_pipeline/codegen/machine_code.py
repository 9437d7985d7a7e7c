"""Machine code: of the kernels that a program calls, and for a GPU what TVM's virtual machine executes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import tvm

from forge_pipeline.codegen.calls import check_calls
from forge_pipeline.codegen.cuda import check_constants, compile_kernels_with_nvcc
from forge_pipeline.codegen.kernel_objects import ANONYMOUS, KernelObjects, Maker
from forge_pipeline.codegen.link import Naming, can_name, link, relocatable
from forge_pipeline.codegen.program.arguments import marked
from forge_pipeline.codegen.program.encoding import Program
from forge_pipeline.codegen.program.translation import SYMBOL
from forge_pipeline.codegen.step import Lowering
from forge_pipeline.codegen.tir.lowering import pipeline
from forge_pipeline.codegen.tir.math import short_math, vector_math


@contextmanager
def compiling(work: Lowering) -> Iterator[tvm.target.Target]:
    """Enter what all is compiled in, and give the target."""
    machine = work.target.tvm()
    config = {
        **work.pass_config,
        "relax.backend.use_cuda_graph": work.target.kind == "cuda",  # launched once, replayed from then on
    }
    with machine, tvm.transform.PassContext(opt_level=_level(work), config=config):
        yield machine


def _level(work: Lowering) -> int:
    return max(work.options.opt_level, 1)


def generate_code(work: Lowering) -> None:
    """Make machine code of the kernels that the program calls; for a GPU, which has no program, TVM's executable.

    Raises CompileError for nvcc's refusals, and for calls of what no device has.
    """
    check_calls(work.module, work.source)
    vector_math.install()
    pipeline.install()
    short_math.install()
    if work.device_program is None:
        with compiling(work) as machine:
            work.code = _for_gpu(work, machine)
        return
    kernels = {variable.name_hint: kernel for variable, kernel in _kernels(work, work.device_program)}
    maker = Maker(
        compiling=partial(compiling, work),
        settings=f"{work.target.spec()} {_level(work)} {dict(work.pass_config)}",
        renames=can_name(work.target) and not work.options.relocatable,
        counts_stack=work.target.libc == "none",
        shows=work.dumps,
        shelf=work.shelf,
    )
    made = maker.make(kernels)
    work.code, work.workspace, work.stack = made, made.workspace, made.stack


def _kernels(work: Lowering, program: Program) -> Iterable[tuple[tvm.ir.GlobalVar, tvm.tirx.PrimFunc]]:
    """Return what ``program`` calls."""
    called = (item for item in work.module.functions_items() if SYMBOL + item[0].name_hint in program.kernels)
    kernels = tvm.IRModule(dict(called))
    if not work.options.argument_checks:
        kernels = marked(kernels, program, named=not work.options.relocatable)
    return kernels.functions_items()  # type: ignore[no-any-return]


def _for_gpu(work: Lowering, machine: tvm.target.Target) -> tvm.runtime.Module:
    """Return what TVM's virtual machine executes: nothing else drives a GPU."""
    check_constants(work.module, work.target.tag)
    refusals = compile_kernels_with_nvcc(work.target)
    try:
        return tvm.relax.build(work.module, machine, relax_pipeline=None, tir_pipeline=pipeline.PIPELINE).mod
    except RuntimeError as error:
        if refusals:
            raise refusals[0] from error
        raise


def code_text(work: Lowering) -> str:
    """Return the assembly of all kernels."""
    if isinstance(work.code, KernelObjects):
        return work.code.assembly
    modules = (work.code, *work.code.imports)
    return "\n\n".join(str(module.inspect_source("s")) for module in modules if module.kind == "llvm")


def linked(work: Lowering, folder: Path) -> bytes:
    """Return what the objects become, which are written into ``folder``."""
    if isinstance(work.code, KernelObjects):
        objects = work.code.written(folder)
        if work.options.relocatable:
            return relocatable(objects, work.target)
        names = {SYMBOL + name: SYMBOL + own for name, own in work.code.names.items()}
        return link(objects, work.target, Naming(names=names, hidden=f"{SYMBOL}{ANONYMOUS}*"))
    made: list[bytes] = []

    def collect(_name: str, objects: list[str], **_ignored: Any) -> None:
        made.append(link([Path(name) for name in objects], work.target))

    # the object of what is no kernel is for a CPU, which no other object names where a GPU has nothing to compute
    vars(collect)["get_target_triple"] = lambda: work.target.triple
    work.code.export_library("model_library.so", fcompile=collect, workspace_dir=str(folder))
    return made[0]
