"""Converters for products of integers with int32 results: exact whatever computes them, and simple to recognise."""

from __future__ import annotations

from typing import Any

import numpy as np

from forge_pipeline.codegen.onnx_import.window_padding import windowed


def convert_matmul_integer(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """MatMulInteger; a zero point may be one for each row of the left and for each column of the right operand."""
    from tvm import relax

    left, right, left_zero, right_zero = (*inputs, None, None)[:4]
    left = _less_zero(builder, left, left_zero, axis=-2)
    right = _less_zero(builder, right, right_zero, axis=-1)
    return relax.op.matmul(left, right, out_dtype="int32")


def convert_conv_integer(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """ConvInteger; the weights' zero point may be one for each filter. Padding is the zero point, a zero in int32."""
    from tvm.relax.frontend.onnx.onnx_frontend import onnx_input

    image, weight, image_zero, weight_zero = (*inputs, None, None)[:4]
    image = _less_zero(builder, image, image_zero, axis=0)
    weight = _less_zero(builder, weight, weight_zero, axis=0)
    return windowed("Conv", builder, onnx_input([image, weight, None]), attributes, opset)


def _less_zero(builder: Any, value: Any, zero: Any, axis: int) -> Any:
    """Return a value minus its zero point in int32; constants at once. ``axis``: that of a list of zero points."""
    from tvm import relax
    from tvm.relax import op

    rank = len(value.ty.shape.values)
    integers, number = _constant(value), None if zero is None else _constant(zero)
    if integers is not None and (zero is None or number is not None):
        wide = integers.astype(np.int32)
        if number is not None:
            wide = wide - _spread(number.astype(np.int32), rank, axis)
        return relax.const(wide, "int32")
    wide = builder.normalize(op.astype(value, "int32"))
    if zero is None:
        return wide
    if number is not None:
        return builder.normalize(op.subtract(wide, relax.const(_spread(number.astype(np.int32), rank, axis), "int32")))
    taken = builder.normalize(op.astype(zero, "int32"))
    if len(taken.ty.shape.values) == 1:
        extents: list[Any] = [1] * rank
        extents[axis] = -1
        taken = builder.normalize(op.reshape(taken, extents))
    return builder.normalize(op.subtract(wide, taken))


def _spread(zeros: np.ndarray[Any, Any], rank: int, axis: int) -> np.ndarray[Any, Any]:
    """Return zero points in a form that is broadcast over what they belong to."""
    if zeros.size == 1:
        return zeros.reshape(())
    if zeros.ndim != 1:
        return zeros
    extents = [1] * rank
    extents[axis] = -1
    return zeros.reshape(extents)


def _constant(expression: Any) -> np.ndarray[Any, Any] | None:
    from tvm.ir import GenericConst

    found: np.ndarray[Any, Any] | None = expression.value.numpy() if isinstance(expression, GenericConst) else None
    return found
