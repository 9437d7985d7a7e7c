"""PyTorch exported programs to Relax: TVM's own front end where it is right, and by way of ONNX where it is not."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from forge_pipeline.errors import CompileError
from forge_pipeline.ffi import import_ffi
from forge_pipeline.frontends.agreement import TOLERANCE, relative_difference

if TYPE_CHECKING:
    import numpy as np
    import tvm
    from torch.export import ExportedProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaxImport:
    """A Relax module with its weights inside, the way it took (``direct``, or ``onnx``) and why."""

    module: tvm.IRModule
    path: Literal["direct", "onnx"]
    reason: str
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]


def import_program(program: ExportedProgram) -> RelaxImport:
    """Return ``program`` as Relax: directly where TVM imports it and it then computes what PyTorch computes.

    Otherwise it goes by way of ONNX, as every other model does, and ``reason`` says what stood in the way. Raises
    ModelError and CompileError where that fails too.
    """
    from forge_pipeline.frontends.torch import check_stateless, input_names, output_names

    check_stateless(program)
    inputs = tuple(input_names(program))
    outputs = tuple(name or f"output_{index}" for index, name in enumerate(output_names(program)))
    try:
        module = _direct(program)
        _check(module, program)
    except _Unfit as unfit:
        return RelaxImport(
            module=_by_onnx(program), path="onnx", reason=str(unfit), input_names=inputs, output_names=outputs
        )
    reason = "TVM imports every operator, and computes what PyTorch computes"
    return RelaxImport(module=module, path="direct", reason=reason, input_names=inputs, output_names=outputs)


class _Unfit(Exception):  # noqa: N818  a way that is not taken, no error for the user
    """Why the direct way is not taken."""


def _direct(program: ExportedProgram) -> tvm.IRModule:
    import_ffi()
    from tvm.relax.frontend.torch import from_exported_program

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice to the authors of exporters
        decomposed = program.run_decompositions()
        _mend_selects(decomposed)
        try:
            return from_exported_program(decomposed, run_ep_decomposition=False)
        except Exception as error:
            raise _Unfit(f"TVM's importer: {type(error).__name__}: {_last_line(error)}") from error


def _mend_selects(program: ExportedProgram) -> None:
    """Write indices from the front, in place: TVM 0.27 reads outside the tensor for one below zero."""
    import torch

    for node in program.graph.nodes:
        if node.op != "call_function" or node.target != torch.ops.aten.select.int:
            continue
        value, axis, index = node.args
        if isinstance(index, int) and index < 0:
            extent = value.meta["val"].shape[axis]
            if not isinstance(extent, int):
                raise _Unfit(f"{node.name} takes element {index} of a dimension of open size")
            node.args = (value, axis, index + extent)


def _check(module: tvm.IRModule, program: ExportedProgram) -> None:
    """Raise _Unfit unless ``module``, built without tuning, computes what PyTorch computes on made-up inputs."""
    import tvm
    from tvm import relax

    from forge_pipeline.frontends.torch import trials

    worst = 0.0
    try:
        machine = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())
        for feeds, wanted in trials(program):
            found = _arrays(machine["main"](*(tvm.runtime.tensor(array) for array in feeds.values())))
            for expected, got in zip(wanted, found, strict=True):
                worst = max(worst, relative_difference(got, expected))
    except Exception as error:
        raise _Unfit(f"TVM's import does not run: {type(error).__name__}: {_last_line(error)}") from error
    if not worst <= TOLERANCE:
        raise _Unfit(f"TVM's import computes something else: off by {worst:.3g} of the largest value")


def _arrays(result: Any) -> list[np.ndarray]:
    return [item.numpy() for item in result] if not hasattr(result, "numpy") else [result.numpy()]


def _by_onnx(program: ExportedProgram) -> tvm.IRModule:
    from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
    from forge_pipeline.frontends.torch import program_to_onnx

    try:
        return import_model(prepare(program_to_onnx(program)))
    except CompileError as error:
        raise CompileError(error.where, error.expected, f"{error.found} (by way of ONNX)", error.fix) from error


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"
