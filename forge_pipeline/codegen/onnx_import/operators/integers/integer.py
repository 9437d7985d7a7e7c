"""Products of integers with int32 results: exact whatever computes them, and simple to recognise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.operators.network.convolution import convolved
from forge_pipeline.ir.sizes.expression import Whole

Array = np.ndarray[Any, Any]


def _matmul(node: NodeImport) -> Any:
    """MatMulInteger; a zero point may be one for each row of the left and for each column of the right operand."""
    return op.matmul(_less_zero(node, 0, axis=-2), _less_zero(node, 1, axis=-1), out_dtype="int32")


def _convolution(node: NodeImport) -> Any:
    """ConvInteger; the weights' zero point may be one for each filter. Padding is the zero point, a zero in int32."""
    return convolved(node, _less_zero(node, 0, axis=0), _less_zero(node, 1, axis=0), bias=None)


def _less_zero(node: NodeImport, index: int, axis: int) -> Any:
    """Return an operand minus its zero point in int32; constants at once. ``axis``: that of a list of zero points."""
    has_zero, rank = node.has(index + 2), node.rank(index)
    integers, zero = node.constant(index), node.constant(index + 2)
    if integers is not None and (not has_zero or zero is not None):
        wide = integers.astype(np.int32)
        return node.const(wide if zero is None else wide - _spread(zero.astype(np.int32), rank, axis), "int32")
    wide = node.emit(op.astype(node.input(index), "int32"))
    if not has_zero:
        return wide
    if zero is not None:
        return node.emit(op.subtract(wide, node.const(_spread(zero.astype(np.int32), rank, axis), "int32")))
    taken = node.emit(op.astype(node.input(index + 2), "int32"))
    if node.rank(index + 2) == 1 and node.shape(index + 2) != (1,):
        extents: list[Whole] = [1] * rank
        extents[axis] = node.shape(index + 2)[0]
        taken = node.reshape(taken, extents)
    return node.emit(op.subtract(wide, taken))


def _spread(zeros: Array, rank: int, axis: int) -> Array:
    """Return zero points in a form that is broadcast over what they belong to."""
    if zeros.size == 1:
        return zeros.reshape(())
    if zeros.ndim != 1:
        return zeros
    extents = [1] * rank
    extents[axis] = -1
    return zeros.reshape(extents)


CONVERTERS: Mapping[str, Converter] = {"ConvInteger": _convolution, "MatMulInteger": _matmul}
