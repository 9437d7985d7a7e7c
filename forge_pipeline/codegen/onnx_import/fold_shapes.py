"""Arithmetic on shapes and other small constants, done once while the model is prepared.

Bodies of the standard's functions compute sizes, axes and masks from shapes; where those are known, so are the results,
and the compiler, which wants them as constants, gets them as such.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, numpy_helper

from forge_pipeline.ir.external_data.mapped import array_of

LARGEST: Final = 1 << 16
"""Elements of the largest constant that takes part: what is larger is a weight, no size."""
UNSTABLE: Final = frozenset(
    {
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"),
        *("QuantizeLinear", "DequantizeLinear", "Constant"),
    }
)
"""Operators that are not folded: random ones, and those that say how a model is quantized."""


NO_LARGER: Final = frozenset({"Compress", "NonZero", "Unique"})
"""Operators whose results are about as large as what they read, and of a size that is known only when they are."""


def fold_shapes(model: ModelProto) -> None:
    """Replace nodes of the main graph that read constants and known shapes alone, in place.

    Types of values must be written down. Results are those of ONNX's own reference implementation.
    """
    graph = model.graph
    known = _constants(graph)
    shapes = _shapes(graph)
    outputs = {value.name for value in graph.output}
    kept = []
    for node in graph.node:
        results = None if outputs.intersection(node.output) else _results(node, known, shapes, model)
        if results is None:
            kept.append(node)
            continue
        for name, array in zip(node.output, results, strict=True):
            if name:
                known[name] = array
                graph.initializer.append(numpy_helper.from_array(array, name))
    if len(kept) < len(graph.node):
        copies = [NodeProto.FromString(node.SerializeToString()) for node in kept]
        del graph.node[:]
        graph.node.extend(copies)


def _constants(graph: GraphProto) -> dict[str, np.ndarray]:
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensors[node.output[0]] = node.attribute[0].t
    small = {name: tensor for name, tensor in tensors.items() if int(np.prod(tensor.dims or [1])) <= LARGEST}
    known = {name: array_of(tensor) for name, tensor in small.items()}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name in ("value_int", "value_ints"):
            known[node.output[0]] = np.array(onnx.helper.get_attribute_value(node.attribute[0]), np.int64)
        elif node.op_type == "Constant" and node.attribute[0].name in ("value_float", "value_floats"):
            known[node.output[0]] = np.array(onnx.helper.get_attribute_value(node.attribute[0]), np.float32)
    return known


def _shapes(graph: GraphProto) -> dict[str, list[int]]:
    """Return the shapes that are known in full."""
    found = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            if all(dim.HasField("dim_value") for dim in dims):
                found[value.name] = [dim.dim_value for dim in dims]
    return found


def _results(
    node: NodeProto, known: dict[str, np.ndarray], shapes: dict[str, list[int]], model: ModelProto
) -> Sequence[np.ndarray] | None:
    if node.domain not in ("", "ai.onnx") or node.op_type in UNSTABLE:
        return None
    if node.op_type in ("Shape", "Size") and node.input[0] in shapes:
        shape = np.array(shapes[node.input[0]], np.int64)
        if node.op_type == "Size":
            return [np.array(shape.prod(), np.int64)]
        ends = {attribute.name: attribute.i for attribute in node.attribute}
        return [shape[ends.get("start", 0) : ends.get("end")]]
    subgraphs = any(item.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for item in node.attribute)
    if subgraphs or not any(node.input) or any(name and name not in known for name in node.input):
        return None
    return _evaluated(node, known, model)


def _evaluated(node: NodeProto, known: dict[str, np.ndarray], model: ModelProto) -> Sequence[np.ndarray] | None:
    from onnx.reference import ReferenceEvaluator

    opsets = {entry.domain: entry.version for entry in model.opset_import}
    alone = onnx.helper.make_graph(
        [node],
        "constant",
        [_value(name, known[name]) for name in dict.fromkeys(node.input) if name],
        [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )
    opset = [onnx.helper.make_opsetid("", opsets.get("", opsets.get("ai.onnx", 1)))]
    single = onnx.helper.make_model(alone, opset_imports=opset)
    if node.op_type not in NO_LARGER and not _is_small(single, known):
        return None
    evaluator: Any = ReferenceEvaluator(single)
    found = evaluator.run(None, {name: known[name] for name in node.input if name})
    arrays = [np.asarray(array) for array in found]
    if any(array.size > LARGEST or array.dtype.kind in "OUS" for array in arrays):
        return None
    results = iter(arrays)
    return [next(results) if name else np.empty(0) for name in node.output]


def _is_small(single: ModelProto, known: dict[str, np.ndarray]) -> bool:
    """Return whether the results of a model of one node are small, before they are computed."""
    given = ModelProto()
    given.CopyFrom(single)
    inputs = [value.name for value in given.graph.input]
    given.graph.initializer.extend(numpy_helper.from_array(known[name], name) for name in inputs)
    del given.graph.input[:]
    shapes = _shapes(onnx.shape_inference.infer_shapes(given, data_prop=True).graph)
    return all(value.name in shapes and math.prod(shapes[value.name]) <= LARGEST for value in single.graph.output)


def _value(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
