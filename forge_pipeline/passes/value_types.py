"""Types of a graph's values, by ONNX's own shape inference, without copying its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import onnx
from onnx import ModelProto, TensorProto, TypeProto, helper

from forge_pipeline.ir.tensors import byte_count

if TYPE_CHECKING:
    from forge_pipeline.passes.graph_state import GraphState

Shape = tuple[int | str | None, ...]
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


def infer_types(graph: GraphState) -> Types:
    """Infer the types of all values of ``graph``; values that inference does not understand are left out."""
    return Types(inferred(skeleton(graph)))


def skeleton(graph: GraphState) -> ModelProto:
    """Return the model with its larger weights turned into inputs of the same type."""
    model = ModelProto()
    model.CopyFrom(graph.header)
    model.ir_version = max(model.ir_version, 4)  # from here on an initializer need not be an input
    model.graph.name = graph.name
    model.graph.node.extend(graph.nodes)
    constants = graph.constants
    model.graph.input.extend(value for value in graph.inputs if value.name not in constants)
    model.graph.output.extend(graph.outputs)
    for tensor in constants.values():
        if graph.is_constant(tensor.name) and byte_count(tensor) <= SMALL:
            model.graph.initializer.append(tensor)
        else:
            model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    for sparse in graph.sparse:
        dims = list(sparse.dims)
        model.graph.input.append(helper.make_tensor_value_info(sparse.values.name, sparse.values.data_type, dims))
    return model


def inferred(model: ModelProto) -> dict[str, tuple[int, Shape | None]]:
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
