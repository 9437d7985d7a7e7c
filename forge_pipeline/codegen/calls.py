"""What kernels call by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call

from forge_pipeline.errors import CompileError

if TYPE_CHECKING:
    import onnx


def check_calls(kernels: tvm.IRModule, model: onnx.ModelProto) -> None:
    """Raise CompileError where ``kernels`` call functions by name: no device has any."""
    missing = sorted(_called(kernels))
    if missing:
        raise CompileError(
            where=f"model {model.graph.name!r}",
            expected="operators that become code of their own",
            found=f"calls of {', '.join(missing)}, which no device has",
            fix="report the model: each of its operators should become code of its own",
        )


def _called(kernels: tvm.IRModule) -> set[str]:
    """Return the names of the functions that kernels look up when they run."""
    calls: list[Call] = []
    for function in kernels.functions.values():
        if isinstance(function, tirx.PrimFunc):
            tvm_ffi.structural_walk(function.body, [(Call, calls.append)])
    return {str(call.args[0].value) for call in calls if getattr(call.op, "name", "") == "tirx.tvm_call_packed"}
