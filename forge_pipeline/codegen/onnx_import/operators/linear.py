"""Products of matrices, and determinants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.relax import op
from tvm.script import tirx as T

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport, broadcast_extents
from forge_pipeline.codegen.sorting.rows import attributes, called, extents_of, own
from forge_pipeline.codegen.tir import script
from forge_pipeline.ir.sizes.expression import Whole, product


def _matmul(node: NodeImport) -> Any:
    """A vector on the left is one row, which the result has not."""
    left, right = _agreeing(node)
    if len(node.shape(0)) > 1:
        return op.matmul(left, right)
    row = node.emit(op.matmul(node.emit(op.expand_dims(left, 0)), right))
    return op.squeeze(row, [-1 if len(node.shape(1)) == 1 else -2])


def _agreeing(node: NodeImport) -> tuple[Any, Any]:
    """Return both operands, told that the extents agree that must: the one that is summed over, and those before."""
    left, right, wanted = node.shape(0), list(node.shape(1)), node.result_shape()
    if len(left) > 1 and len(right) > 1:
        right[-2] = left[-1]
    elif len(right) == 1:
        right[0] = left[-1]
    batch = wanted[: max(len(left), len(right)) - 2]

    def broadcast(shape: Sequence[Whole]) -> list[Whole]:
        return [*broadcast_extents(shape[:-2], batch), *shape[-2:]]

    return node.told(0, broadcast(left)), node.told(1, broadcast(right))


def _gemm(node: NodeImport) -> Any:
    """``alpha A B + beta C``, A and B transposed where the node says so."""
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


def _determinant(node: NodeImport) -> Any:
    """Det, by elimination with the greatest pivot of each column (Golub and Van Loan, Matrix Computations, 3.4)."""
    *outer, extent, _ = node.shape()
    count = product(outer)
    value = node.reshape(node.input(0), [count, extent, extent])
    shape, dtype = extents_of(value), node.dtype()
    results = [(shape, dtype), (shape[:1], dtype)]
    _, found = called(node.scope.builder, _elimination(shape, dtype), [value], results)
    return node.reshape(found, outer)


def _elimination(extents: Sequence[Any], dtype: str) -> Any:
    """Return ``(matrices (count, n, n)) -> (what is left of them, determinants (count,))``."""
    (shape,) = own(extents)
    count, size, _ = shape
    zero = tirx.const(0, dtype)

    def share(work: Any, m: Any, row: Any, k: Any) -> Any:
        pivot = work[m, k, k]
        return tirx.Select(pivot.equal(zero), zero, work[m, row, k] / pivot)

    @script.prim_func(s_tir=True, private=True)
    def determinant(a: T.handle, b: T.handle, c: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes("determinant"))
        A = T.match_buffer(a, shape, dtype)
        W = T.match_buffer(b, shape, dtype)
        D = T.match_buffer(c, (count,), dtype)
        for matrix in T.parallel(count):
            with T.sblock("matrix"):
                m = T.axis.opaque(count, matrix)
                T.reads()
                T.writes()
                best = T.sblock_alloc_buffer((1,), "int64", scope="local")
                kept = T.sblock_alloc_buffer((1,), dtype, scope="local")
                for i, j in T.grid(size, size):
                    W[m, i, j] = A[m, i, j]
                D[m] = tirx.const(1, dtype)
                for k in T.serial(size):
                    best[0] = k
                    for i in T.serial(size - k):
                        if T.abs(W[m, k + i, k]) > T.abs(W[m, best[0], k]):
                            best[0] = k + i
                    if best[0] != k:
                        D[m] = zero - D[m]
                        for j in T.serial(size):
                            kept[0] = W[m, k, j]
                            W[m, k, j] = W[m, best[0], j]
                            W[m, best[0], j] = kept[0]
                    D[m] = D[m] * W[m, k, k]
                    for i in T.serial(size - k - 1):
                        kept[0] = share(W, m, k + 1 + i, k)
                        for j in T.serial(size):
                            W[m, k + 1 + i, j] = W[m, k + 1 + i, j] - kept[0] * W[m, k, j]

    return determinant


CONVERTERS: Mapping[str, Converter] = {"Det": _determinant, "Gemm": _gemm, "MatMul": _matmul}
