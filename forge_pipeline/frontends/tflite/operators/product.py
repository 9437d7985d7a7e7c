"""TensorFlow Lite's products of matrices and look-ups of rows, each as ONNX."""

from __future__ import annotations

from forge_pipeline.frontends.tflite.builder import Builder, bound, option, unsupported
from forge_pipeline.frontends.tflite.model import Operator
from forge_pipeline.frontends.tflite.operators.convolution import bias


def fully_connected(b: Builder, op: Operator) -> None:
    """FULLY_CONNECTED: weights [out, in]; the values' leading dimensions are one, or kept with ``keep_num_dims``."""
    if option(op, "WeightsFormat", 0) != 0:
        raise unsupported("shuffled weights", "weights in their own order")
    weights, columns = b.tensor(op.inputs[1]).data, b.shape(op.inputs[1])[1]
    values, shape = b.real(op.inputs[0]), b.shape(op.inputs[0])
    if option(op, "KeepNumDims", False) and len(shape) != 2:
        if weights is not None:
            matrix = b.real_constant(op.inputs[1], weights.T, 1)
        else:
            matrix = b.node("Transpose", [b.real(op.inputs[1])], perm=[1, 0])
        name = b.node("MatMul", [values, matrix])
        if addend := bias(b, op, 2):
            name = b.node("Add", [name, *addend])
    else:
        if len(shape) != 2 or shape[1] != columns:
            if columns is None:
                raise unsupported("a matrix of open size", "a fixed number of columns")
            values = b.node("Reshape", [values, b.integers(-1, columns)])
        name = b.node("Gemm", [values, b.real(op.inputs[1]), *bias(b, op, 2)], transB=1)
    b.put(op.outputs[0], b.activated(name, bound(op), op.outputs[0]))


def batched_product(b: Builder, op: Operator) -> None:
    """BATCH_MATMUL: either side may come transposed."""
    sides = []
    for position, flag in enumerate(("AdjX", "AdjY")):
        name, rank = b.real(op.inputs[position]), b.rank(op.inputs[position])
        if option(op, flag, False):
            name = b.node("Transpose", [name], perm=[*range(rank - 2), rank - 1, rank - 2])
        sides.append(name)
    b.put(op.outputs[0], b.node("MatMul", sides))


def embedding_lookup(b: Builder, op: Operator) -> None:
    """EMBEDDING_LOOKUP: rows of a table, which are made real numbers after they are picked."""
    rows, table = op.inputs
    tensor = b.tensor(table)
    picks = b.int64(rows)
    if tensor.quantization is None or tensor.dtype == b.tensor(op.outputs[0]).dtype:
        b.give(op.outputs[0], b.node("Gather", [b.stored(table), picks], axis=0))
    elif tensor.quantization.per_axis:
        b.put(op.outputs[0], b.node("Gather", [b.real(table), picks], axis=0))
    else:
        picked = b.node("Gather", [b.stored(table), picks], axis=0)
        b.put(op.outputs[0], b.dequantized(picked, tensor.quantization, tensor.dtype, 0))
