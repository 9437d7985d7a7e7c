"""Element types and shapes of a node's results, one node at a time.

ONNX's own inference knows no operator of com.microsoft, and stops behind the first. Where such operators are written
out in the order of the graph, every node is looked at when its operands are known.
"""

from __future__ import annotations

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, TypeProto, helper

Dims = tuple[int | str | None, ...]
"""A shape: sizes, names of sizes, and None for what is not known."""

REFUSALS = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, KeyError, ValueError)
"""What ONNX raises for a node that contradicts itself: it is refused later, by its name."""

SHAPED_BY = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}
"""Operators whose result has as many axes as one of their inputs has elements, Expand at least so many."""


def dims_of(kind: TypeProto.Tensor) -> Dims | None:
    """Return the shape that a type states, None where it states none; sizes that are not positive are not known."""
    if not kind.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else dim.dim_param or None
        for dim in kind.shape.dim
    )


def results_of(
    node: NodeProto, opset: int, types: dict[str, int], shapes: dict[str, Dims], data: dict[str, TensorProto]
) -> dict[str, tuple[int, Dims | None]]:
    """Return element type and shape of the results of one of ONNX's operators, as far as they follow.

    ``data`` are those of the inputs that are small constants.
    """
    names = [name for name in node.input if name]
    if any(not types.get(name) for name in names) or any(
        item.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for item in node.attribute
    ):
        return {}
    given = {name: helper.make_tensor_type_proto(types[name], shapes.get(name)) for name in names}
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
        imports = [helper.make_opsetid("", opset)]
        found = onnx.shape_inference.infer_node_outputs(schema, node, given, data, opset_imports=imports)
    except (onnx.defs.SchemaError, *REFUSALS):
        return {}
    results: dict[str, tuple[int, Dims | None]] = {}
    for name, kind in found.items():
        tensor = kind.tensor_type
        if tensor.elem_type:
            dims = dims_of(tensor)
            results[name] = (tensor.elem_type, _axes(node, shapes) if dims is None else dims)
    return results


def _axes(node: NodeProto, shapes: dict[str, Dims]) -> Dims | None:
    """Return a shape of unknown sizes where no more than the number of axes follows, from the length of a shape."""
    if node.op_type not in SHAPED_BY:
        return None
    length = shapes.get(node.input[SHAPED_BY[node.op_type]])
    if length is None or len(length) != 1 or not isinstance(length[0], int):
        return None
    count = length[0]
    if node.op_type == "Expand":
        data = shapes.get(node.input[0])
        if data is None:
            return None
        count = max(count, len(data))
    return (None,) * count
