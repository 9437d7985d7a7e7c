"""Constants of two and four bits, which ONNX packs, as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx


def with_bytes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with constants of two and four bits as bytes; ``model`` itself where it has none."""
    from onnx import ModelProto, TensorProto

    from forge_pipeline.ir.external_data.mapped import array_of, tensor_of

    wider = {
        TensorProto.INT2: np.int8,
        TensorProto.INT4: np.int8,
        TensorProto.UINT2: np.uint8,
        TensorProto.UINT4: np.uint8,
    }
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
