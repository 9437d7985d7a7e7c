"""What a Relax module must have, and its interface in plain values."""

from __future__ import annotations

import tvm
from tvm import relax

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.onnx_module import Shape
from forge_pipeline.relax.graph import Node


def checked(mod: tvm.IRModule) -> tvm.IRModule:
    """Return ``mod`` where it has a function `main` in Relax. Raises ModelError where not."""
    known = isinstance(mod, tvm.IRModule)
    names = [str(variable.name_hint) for variable in mod.functions] if known else []
    if not known or "main" not in names or not isinstance(mod["main"], relax.Function):
        found = f"functions {', '.join(names) or 'none'}" if known else type(mod).__name__
        raise ModelError(
            where="RelaxModule(mod)",
            expected="a tvm.IRModule with a function `main` in Relax",
            found=found,
            fix="use ONNXModule for an ONNX model, or RelaxModule.from_onnx",
        )
    return mod


def tensor_of(node: Node) -> tuple[Shape, str]:
    """Return shape and element type of an output. Raises ModelError where it is no tensor."""
    shape, dtype = node.shape, node.dtype
    if shape is None or dtype is None:
        raise ModelError(f"output {node.name!r}", "a tensor", str(node.value.ty), "return tensors from `main`")
    return shape, dtype
