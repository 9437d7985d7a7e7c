"""From an ONNX model to a library for one target: import, a code generator, the virtual machine's bytecode, link."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_pipeline.codegen.amx_permission import needed
from forge_pipeline.codegen.cuda import compile_kernels_with_nvcc
from forge_pipeline.codegen.device import check_calls
from forge_pipeline.codegen.generator import Lowered
from forge_pipeline.codegen.generators import pick_generator
from forge_pipeline.codegen.link import link
from forge_pipeline.codegen.memory.planner import plan_memory
from forge_pipeline.codegen.memory.weight_section import Halves, Separated, separate
from forge_pipeline.codegen.onnx_import.float16 import storage, widened
from forge_pipeline.codegen.onnx_import.importer import Progress, first_line, import_model, interface, prepare
from forge_pipeline.codegen.options import Options
from forge_pipeline.codegen.tir import local_buffers
from forge_pipeline.codegen.tir.deterministic_order import in_order
from forge_pipeline.codegen.tir.vector_math import install
from forge_pipeline.content import OpenFile
from forge_pipeline.errors import CompileError, ForgeError
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.target import Target

if TYPE_CHECKING:
    import onnx
    import tvm


def build(
    model: onnx.ModelProto,
    target: Target,
    options: Options,
    *,
    progress: Progress = lambda step: None,
    section: OpenFile | None = None,
) -> Library:
    """Return ``model`` compiled for ``target``: same arguments, same bytes, wherever and whenever it runs.

    The metadata describes interface, weights, target, options and fallbacks; whose build it is, the stage adds.
    ``progress`` is told what is being worked on. The weights are written to ``section``, if that is given, and stay
    there. Raises CompileError, ModelError and TargetError.
    """
    target = needed(target, options)
    model = prepare(model)
    wide = model if target.kind == "cuda" else widened(model)
    imported = import_model(wide, progress)
    progress(f"lower with {options.generator}")
    with _explained(f"lowering for {target.tag}"):
        lowered = pick_generator(options, target)(imported, target, options)
        del imported
        halves = "rounded" if options.float16 else storage(model)
        separated = _separate(lowered, target, as_halves=halves, file=section)
        lowered = replace(lowered, module=separated.module)  # the constants go
    progress("generate code")
    with _explained(f"code generation for {target.tag}"):
        executable = _compile(separated.module, lowered, target, options)
    check_calls(executable, separated.module, model)
    progress("link")
    elf = _export(executable, target)
    return Library(elf=elf, weights=separated.section, metadata=_describe(model, target, options, lowered, separated))


def relax_text(model: onnx.ModelProto) -> str:
    """Return the imported model in Relax's text form, weights as names. Raises as ``build`` does."""
    return str(import_model(prepare(model)).script(show_meta=False))


def _separate(lowered: Lowered, target: Target, *, as_halves: Halves, file: OpenFile | None) -> Separated:
    """Move the weights out of the code where the kernels can read them in place: not on a GPU."""
    if target.kind == "cuda":
        return Separated(module=lowered.module, section=b"", table=[])
    return separate(lowered.module, as_halves=as_halves, file=file)


def _compile(module: tvm.IRModule, lowered: Lowered, target: Target, options: Options) -> Any:
    """Return TVM's executable."""
    import tvm
    from tvm.relax.backend import cpu_generic
    from tvm.relax.backend.cuda import pipeline as cuda

    install()
    local_buffers.install()
    backend = cuda if target.kind == "cuda" else cpu_generic.pipeline
    refusals = compile_kernels_with_nvcc(target) if target.kind == "cuda" else []
    machine = target.tvm()
    with machine, tvm.transform.PassContext(opt_level=max(options.opt_level, 1), config=dict(lowered.pass_config)):
        module = planned(module, target)
        module = in_order(tvm.transform.Sequential(backend.finalize_passes(machine))(module))
        try:
            return tvm.relax.build(module, machine, relax_pipeline=None, tir_pipeline=local_buffers.PIPELINE)
        except RuntimeError as error:
            if refusals:
                raise refusals[0] from error
            raise


def planned(module: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Return scheduled kernels and their callers with the memory that values between them take."""
    import tvm
    from tvm.relax.backend import cpu_generic
    from tvm.relax.backend.cuda import pipeline as cuda

    backend = cuda if target.kind == "cuda" else cpu_generic.pipeline
    module = tvm.transform.Sequential(backend.dataflow_lower_passes(target.tvm()))(module)
    return module if target.kind == "cuda" else plan_memory(module)


def _export(executable: Any, target: Target) -> bytes:
    """Write the objects where nobody else is, and link them."""
    linked: list[bytes] = []

    def collect(_name: str, objects: list[str], **_ignored: Any) -> None:
        linked.append(link([Path(name) for name in objects], target))

    collect.get_target_triple = lambda: target.triple  # type: ignore[attr-defined]  # asked for where there are no kernels

    with tempfile.TemporaryDirectory(prefix="forge-objects-") as folder, _explained(f"export for {target.tag}"):
        executable.export_library("model_library.so", fcompile=collect, workspace_dir=folder)
    return linked[0]


def _describe(
    model: onnx.ModelProto, target: Target, options: Options, lowered: Lowered, separated: Separated
) -> dict[str, Any]:
    constants = {tensor.name for tensor in model.graph.initializer}
    return {
        "format": 1,
        "target": {
            "tag": target.tag,
            "kind": target.kind,
            "triple": target.triple,
            "cpu": target.cpu,
            "features": list(target.features),
            "cpu_flags": list(target.cpu_flags),
            "cuda_arch": target.cuda_arch,
        },
        "inputs": interface(value for value in model.graph.input if value.name not in constants),
        "outputs": interface(model.graph.output),
        "weights": separated.table,
        "single": lowered.single,
        "compile": {
            "generator": options.generator,
            "opt_level": options.opt_level,
            "float16": options.float16,
            "channel_layout": options.channel_layout,
            "amx": options.amx,
            "fallbacks": [
                {"operator": item.operator, "shape": list(item.shape), "share": item.share}
                for item in lowered.fallbacks
            ],
        },
    }


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn what TVM raises into a CompileError that says in which step, with TVM's own last line."""
    try:
        yield
    except ForgeError:
        raise
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError, AssertionError) as error:
        raise CompileError(
            where=what,
            expected="TVM to compile the model",
            found=f"{type(error).__name__}: {first_line(error)}",
            fix="try `compile.opt_level=1` or `compile.generator=stock`; if that works, report the model",
        ) from error
