"""Kernels by themselves: called from a function of any extents, on arrays, and what ONNX Runtime makes of the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnx import helper

Emit = Callable[..., Sequence[Any]]
"""``(builder, *values) -> results``."""


def run(emit: Emit, arrays: Sequence[np.ndarray], *, is_open: bool = True) -> list[np.ndarray]:
    """Return what ``emit`` makes of ``arrays``, whose extents are all variables where ``is_open``; equal ones alike."""
    import tvm
    from tvm import relax, tirx

    builder = relax.BlockBuilder()
    variables: dict[int, Any] = {}

    def extent(size: int) -> Any:
        return variables.setdefault(size, tirx.Var(f"extent{size}", "int64")) if is_open else size

    values = [
        relax.Var(f"x{at}", relax.TensorType([extent(size) for size in array.shape], str(array.dtype)))
        for at, array in enumerate(arrays)
    ]
    with builder.function("main", values):
        with builder.dataflow():
            output = builder.emit_output(relax.Tuple(list(emit(builder, *values))))
        builder.emit_func_output(output)
    machine = relax.VirtualMachine(tvm.compile(builder.get(), tvm.target.Target({"kind": "llvm"})), tvm.cpu())
    return [found.numpy() for found in machine["main"](*map(tvm.runtime.tensor, arrays))]


def of_onnx_runtime(
    operator: str, arrays: Sequence[np.ndarray], outputs: int = 1, *, opset: int = 18, **attributes: Any
) -> list[np.ndarray]:
    """Return what ONNX Runtime's ``operator`` makes of ``arrays``."""
    names, results = [f"i{at}" for at in range(len(arrays))], [f"o{at}" for at in range(outputs)]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, arrays, strict=True)
    ]
    graph = helper.make_graph(
        [helper.make_node(operator, names, results, **attributes)],
        "graph",
        inputs,
        [helper.make_empty_tensor_value_info(name) for name in results],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    found: list[np.ndarray] = onnxruntime.InferenceSession(model.SerializeToString()).run(
        None, dict(zip(names, arrays, strict=True))
    )
    return found


def allocated(function: Any, note: str = "") -> list[tuple[int, Any]]:
    """Return, for each buffer that blocks allocate, or have in the annotation ``note``, how many loops it is in."""
    import tvm_ffi
    from tvm import s_tir, tirx

    found: list[tuple[int, Any]] = []
    depth = 0

    def enter(loop: tirx.For, mutator: Any) -> Any:
        nonlocal depth
        depth += 1
        done = mutator.default_mutate(loop)
        depth -= 1
        return done

    def block(block: s_tir.SBlock, mutator: Any) -> Any:
        found.extend((depth, buffer) for buffer in [*block.alloc_buffers, *dict(block.annotations).get(note, [])])
        return mutator.default_mutate(block)

    tvm_ffi.structural_mutate(function.body, [(tirx.For, enter), (s_tir.SBlock, block)])
    return found
