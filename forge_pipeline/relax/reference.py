"""A Relax module as a Python function: each operator one plain kernel, nothing fused, for checking numbers.

The reference within TVM: library dispatch (sorting), legalisation, and the lowering that the virtual machine needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.backend import cpu_generic
from tvm.relax.backend.cuda import pipeline as cuda

from forge_pipeline.errors import CompileError, ConfigError, DataError

Array = np.ndarray


def inference_function(
    module: tvm.IRModule, names: Sequence[str], weights: Sequence[Array], target: Mapping[str, Any]
) -> Callable[..., Array | list[Array]]:
    """Return ``f(input0, input1, ...)``; ``weights`` follow the inputs as parameters of `main`.

    Raises CompileError where TVM cannot compile an operator, ConfigError where the target cannot run here.
    """
    described = tvm.target.Target(dict(target))
    device = tvm.cpu() if str(described.kind) == "llvm" else tvm.device(str(described.kind), 0)
    if not device.exist:
        raise ConfigError("target", "a device of this machine", str(described.kind), "use target='llvm'")
    machine = relax.VirtualMachine(_built(module, described), device)
    fixed = [tvm.runtime.tensor(np.asarray(array, order="C"), device) for array in weights]
    wanted = [variable.ty for variable in module["main"].params]

    def infer(*arrays: Array) -> Array | list[Array]:
        if len(arrays) != len(names):
            raise TypeError(f"this model takes {len(names)} arrays ({', '.join(names)}), not {len(arrays)}")
        fed = [np.asarray(array) for array in arrays]
        for name, array, kind in zip(names, fed, wanted, strict=False):
            if str(array.dtype) != str(kind.dtype) or array.ndim != int(kind.ndim):
                raise DataError(f"input {name!r}", str(kind), f"{array.dtype}{list(array.shape)}", "convert the array")
        try:
            found = machine["main"](*(tvm.runtime.tensor(np.asarray(a, order="C"), device) for a in fed), *fixed)
        except (RuntimeError, ValueError, TypeError) as error:
            shown = ", ".join(f"{array.dtype}{list(array.shape)}" for array in fed)
            last = [line for line in str(error).splitlines() if line.strip()][-1]
            raise DataError(
                "inference", f"arrays that the model computes with, not {shown}", last, "see input_shapes"
            ) from error
        arrays_out = _arrays(found)
        return arrays_out[0] if len(arrays_out) == 1 else arrays_out

    return infer


def _built(module: tvm.IRModule, target: tvm.target.Target) -> Any:
    backend = cpu_generic.pipeline if str(target.kind) == "llvm" else cuda
    legalize = [relax.transform.LegalizeOps()] if str(target.kind) == "llvm" else backend.legalize_passes(target)
    passes = [*backend.library_dispatch_passes(target), *legalize]
    passes += [*backend.dataflow_lower_passes(target), *backend.finalize_passes(target)]
    try:
        with target:
            lowered = tvm.transform.Sequential(passes)(module)
            return relax.build(lowered, target, relax_pipeline=None)
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError, AssertionError) as error:
        last = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise CompileError(
            where="get_inference_function",
            expected="operators that TVM can compile one by one",
            found=f"{type(error).__name__}: {(last or ['no message'])[-1][:300]}",
            fix="replace the operator it names",
        ) from error


def _arrays(value: Any) -> list[Array]:
    return [value.numpy()] if hasattr(value, "numpy") else [array for item in value for array in _arrays(item)]
