"""Half precision: float16 weights and arithmetic behind an unchanged float32 interface."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.canonical import canonical_model
from forge_pipeline.quantization.network import Network

LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Halved:
    """The model in float16, and the bytes of its weights before and after."""

    model: ModelProto
    bytes_before: int
    bytes_after: int


def to_float16(network: Network) -> Halved:
    """Return a copy of the network's model that computes in float16 between float32 inputs and outputs.

    Raises ModelError for a weight beyond float16's range, which would silently become infinite.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    for name, tensor in network.constants.items():
        if tensor.data_type == TensorProto.FLOAT:
            array = network.array(name)
            peak = float(np.abs(array).max(initial=0.0))
            if not peak <= LARGEST:
                raise ModelError(
                    where=f"weight {name!r}",
                    expected=f"values up to {LARGEST:g}, the largest of float16",
                    found=f"{peak:g}",
                    fix="choose quantize=static, quantize=dynamic or quantize=none for this model",
                )
    # the converter appends its casts behind their readers: the canonical form puts them in order
    model = canonical_model(convert_float_to_float16(network.copy().model, keep_io_types=True))
    return Halved(model=model, bytes_before=_weights(network.model), bytes_after=_weights(model))


def _weights(model: ModelProto) -> int:
    return sum(numpy_helper.to_array(tensor).nbytes for tensor in model.graph.initializer)
