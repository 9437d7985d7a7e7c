"""Types of a graph's values, by ONNX's own shape inference, without copying its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import onnx
from onnx import ModelProto, TensorProto, TypeProto

from forge_pipeline.ir.sizes.expression import Whole

Shape = tuple[int | str | None, ...]
OpenShape: TypeAlias = "tuple[Whole | str | None, ...]"
"""Numbers and expressions; symbols of ONNX's shape inference, which are equal to themselves, and None."""
SMALL = 4096  # bytes: constants up to this size may be shapes, axes or scales, which inference reads


class Types:
    """Element type and shape of each value that inference understood."""

    def __init__(self, known: Mapping[str, tuple[int, Shape | None]]) -> None:
        self._known = dict(known)

    def shape(self, name: str) -> Shape | None:
        """Return the shape, None where not even the rank is known."""
        return self._known.get(name, (0, None))[1]

    def elem_type(self, name: str) -> int:
        """Return the element type, 0 where it is not known."""
        return self._known.get(name, (0, None))[0]

    def set(self, name: str, elem_type: int, shape: Shape | None) -> None:
        """Record what an edit made known."""
        self._known[name] = (elem_type, shape)


def infer_model_types(model: ModelProto) -> dict[str, tuple[int, Shape | None]]:
    """Return what ONNX's shape inference finds about ``model``; nothing where it refuses the model."""
    try:
        known = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except onnx.shape_inference.InferenceError:
        known = model.graph
    types: dict[str, tuple[int, Shape | None]] = {}
    for value in (*known.value_info, *known.input, *known.output):
        if value.type.HasField("tensor_type"):
            types[value.name] = _tensor(value.type.tensor_type)
    for tensor in known.initializer:
        types[tensor.name] = (tensor.data_type, tuple(tensor.dims))
    return types


def _tensor(tensor: TypeProto.Tensor) -> tuple[int, Shape | None]:
    if not tensor.HasField("shape"):
        return tensor.elem_type or TensorProto.UNDEFINED, None
    return tensor.elem_type, tuple(_dim(dim) for dim in tensor.shape.dim)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return str(dim.dim_param) or None
