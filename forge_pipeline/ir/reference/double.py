"""A model of floats in double precision: what its results are before they are rounded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, TypeProto

from forge_pipeline.ir.external_data.mapped import array_of, tensor_of
from forge_pipeline.ir.external_data.writer import without_initializers
from forge_pipeline.ir.traversal import every_graph

_TYPED: Final = ("to", "dtype", "output_datatype")
"""Attributes that name the type of a result."""


def in_double(model: ModelProto) -> ModelProto:
    """Return a model whose 32-bit floats are 64-bit ones: inputs, weights, results and outputs.

    ONNX has every operator of floats in both, ONNX Runtime has not: it refuses a model that holds, say, a convolution.
    """
    double = without_initializers(model)
    double.graph.initializer.extend(map(_tensor, model.graph.initializer))
    for graph in every_graph(double):
        for value in (*graph.input, *graph.output, *graph.value_info):
            _retype(value.type)
        if graph is not double.graph:
            _replace(graph.initializer)
        for node in graph.node:
            _convert(node)
    return double


def feed_in_double(feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a feed whose 32-bit floats are 64-bit ones."""
    return {name: _array(np.asarray(values)) for name, values in feed.items()}


def _array(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64) if values.dtype == np.float32 else values


def _tensor(tensor: TensorProto) -> TensorProto:
    return tensor_of(_array(array_of(tensor)), tensor.name) if tensor.data_type == TensorProto.FLOAT else tensor


def _replace(tensors: Iterable[TensorProto]) -> None:
    for tensor in tensors:
        tensor.CopyFrom(_tensor(tensor))


def _retype(kind: TypeProto) -> None:
    held = kind.WhichOneof("value")
    if held == "tensor_type" and kind.tensor_type.elem_type == TensorProto.FLOAT:
        kind.tensor_type.elem_type = TensorProto.DOUBLE
    elif held in ("sequence_type", "optional_type"):
        _retype(getattr(kind, held).elem_type)


def _convert(node: NodeProto) -> None:
    for item in node.attribute:
        if item.name in _TYPED and item.type == AttributeProto.INT and item.i == TensorProto.FLOAT:
            item.i = TensorProto.DOUBLE
        elif item.type == AttributeProto.TENSOR:
            _replace([item.t])
        elif item.type == AttributeProto.TENSORS:
            _replace(item.tensors)
        elif node.op_type == "Constant" and item.name in ("value_float", "value_floats"):
            values = item.f if item.name == "value_float" else list(item.floats)
            item.CopyFrom(AttributeProto(name="value", type=AttributeProto.TENSOR, t=tensor_of(np.array(values), "")))
