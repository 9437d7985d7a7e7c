"""Half precision: float16 weights and arithmetic behind an unchanged float32 interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.canonical import canonical_model
from forge_pipeline.quantization.network import Network

LARGEST = float(np.finfo(np.float16).max)


MASKING = frozenset({"Add", "Sub", "Where", "Min", "Max", "Clip", "Pad", "Expand", "Concat"})
"""Operators that a number beyond float16's range reaches as what stands for infinity: a mask's fill, a bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halved:
    """The model in float16, and the bytes of its weights before and after.

    ``clipped``: the largest magnitude of each constant that was brought into float16's range.
    """

    model: ModelProto
    bytes_before: int
    bytes_after: int
    clipped: Mapping[str, float]


def to_float16(network: Network) -> Halved:
    """Return a copy of the network's model that computes in float16 between float32 inputs and outputs.

    Finite constants beyond float16's range become its largest number where they fill masks, as other converters have
    it: where they are added, chosen or compared, or are negative factors. Raises ModelError for others, such as a
    weight, which would silently become another.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    clipped: dict[str, float] = {}
    for name, tensor in network.constants.items():
        if tensor.data_type == TensorProto.FLOAT:
            array = network.array(name)
            finite = array[np.isfinite(array)]
            peak = float(np.abs(finite).max(initial=0.0))
            if peak > LARGEST:
                readers = {node.op_type for node in network.consumers.get(name, [])}
                fills = MASKING if float(finite.max()) > LARGEST else MASKING | {"Mul"}
                if not readers <= fills:
                    raise ModelError(
                        where=f"weight {name!r}",
                        expected=f"values up to {LARGEST:g}, the largest of float16",
                        found=f"{peak:g}",
                        fix="choose quantize=static, quantize=dynamic or quantize=none for this model",
                    )
                clipped[name] = peak
    # the converter appends its casts behind their readers: the canonical form puts them in order
    model = canonical_model(convert_float_to_float16(network.copy().model, keep_io_types=True))
    return Halved(model=model, bytes_before=_weights(network.model), bytes_after=_weights(model), clipped=clipped)


def _weights(model: ModelProto) -> int:
    return sum(numpy_helper.to_array(tensor).nbytes for tensor in model.graph.initializer)
