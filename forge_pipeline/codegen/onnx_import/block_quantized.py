"""Weights of four or eight bits with a scale for each block of them: how ONNX stores them, as Relax can say it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx


def with_bytes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with constants of four bits as bytes, which TVM can read; ``model`` itself where it has none."""
    from onnx import ModelProto, TensorProto

    from forge_pipeline.ir.external_data.mapped import array_of, tensor_of

    wider = {TensorProto.INT4: np.int8, TensorProto.UINT4: np.uint8}
    found = [tensor for tensor in model.graph.initializer if tensor.data_type in wider]
    if not found:
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.data_type in wider:
            array = array_of(tensor).astype(wider[tensor.data_type])
            tensor.CopyFrom(tensor_of(array, tensor.name))
    return copy


def dequantize(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """DequantizeLinear, of constants in blocks too.

    Relax has one scale for each index of an axis, so blocks are laid side by side along one axis, and moved to
    where they belong after they are dequantized.
    """
    from tvm import relax
    from tvm.ir import GenericConst
    from tvm.relax.frontend.onnx.onnx_frontend import DequantizeLinear

    size = int(attributes.get("block_size", 0))
    present = [value for value in inputs if value is not None]
    if not size or not all(isinstance(value, GenericConst) for value in present):
        return DequantizeLinear.get_converter(opset)(builder, inputs, attributes, [{}, {}])
    integers, scale, *zeros = (value.value.numpy() for value in present)
    zero = zeros[0] if zeros else np.zeros(scale.shape, integers.dtype)
    axis = int(attributes.get("axis", 1)) % integers.ndim
    integers, scale, zero = (np.moveaxis(array, axis, 0) for array in (integers, scale, zero))
    length, *rest = integers.shape
    block = math.gcd(length, size)  # the last block may be shorter than the others: parts of equal length have a scale
    parts = np.arange(length // block) * block // size
    side_by_side = integers.reshape(length // block, block, *rest).swapaxes(0, 1).reshape(block, -1)
    constants = [np.ascontiguousarray(array) for array in (side_by_side, scale[parts].ravel(), zero[parts].ravel())]
    value = relax.op.dequantize(*(relax.const(array) for array in constants), axis=1, out_dtype="float32")
    value = relax.op.reshape(value, (block, length // block, *rest))
    value = relax.op.permute_dims(value, (1, 0, *range(2, 2 + len(rest))))
    value = builder.normalize(relax.op.reshape(value, (length, *rest)))
    back = list(range(1, integers.ndim))
    back.insert(axis, 0)
    return value if axis == 0 else relax.op.permute_dims(value, back)
