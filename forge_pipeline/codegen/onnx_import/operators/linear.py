"""Products of matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.ir.sizes.expression import Whole


def _matmul(node: NodeImport) -> Any:
    from tvm.relax import op

    left, right = _agreeing(node)
    return op.matmul(left, right)


def _agreeing(node: NodeImport) -> tuple[Any, Any]:
    """Return both operands, told that the extents agree that must: the one that is summed over, and those before."""
    left, right, wanted = node.shape(0), list(node.shape(1)), node.result_shape()
    if len(left) > 1 and len(right) > 1:
        right[-2] = left[-1]
    elif len(right) == 1:
        right[0] = left[-1]
    batch = wanted[: max(len(left), len(right)) - 2]

    def broadcast(shape: Sequence[Whole]) -> list[Whole]:
        own = list(shape[:-2])
        return [a if a == 1 else b for a, b in zip(own, batch[len(batch) - len(own) :], strict=True)] + list(shape[-2:])

    return node.told(0, broadcast(left)), node.told(1, broadcast(right))


def _gemm(node: NodeImport) -> Any:
    """``alpha A B + beta C``, A and B transposed where the node says so."""
    from tvm.relax import op

    dtype = node.dtype()
    left, right = node.input(0), node.input(1)
    alpha, beta = float(node.attributes.get("alpha", 1.0)), float(node.attributes.get("beta", 1.0))
    if alpha != 1.0:
        left = node.emit(op.multiply(left, node.const(alpha, dtype)))
    if node.attributes.get("transA", 0):
        left = node.emit(op.permute_dims(left, [1, 0]))
    if node.attributes.get("transB", 0):
        right = node.emit(op.permute_dims(right, [1, 0]))
    product = op.matmul(left, right)
    if not node.has(2) or beta == 0.0:
        return product
    bias = node.input(2)
    if beta != 1.0:
        bias = node.emit(op.multiply(bias, node.const(beta, dtype)))
    return op.add(node.emit(product), bias)


CONVERTERS: Mapping[str, Converter] = {"Gemm": _gemm, "MatMul": _matmul}
