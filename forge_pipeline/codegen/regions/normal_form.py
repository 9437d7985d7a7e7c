"""A model in which every name is one value's, in whichever graph it is, and all constants are the main graph's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

STANDARD = ("", "ai.onnx")


def normal_form(model: ModelProto) -> ModelProto:
    """Return ``model``, without local functions, with unique names and its constants as initializers."""
    result = ModelProto()
    result.CopyFrom(model)
    names = _Names({value.name for value in result.graph.input})
    names.taken |= {tensor.name for tensor in result.graph.initializer}
    names.taken |= {name for node in result.graph.node for name in node.output}
    weights: list[TensorProto] = []
    _bring(result.graph, {}, names, weights, is_main=True)
    result.graph.initializer.extend(weights)
    return result


class _Names:
    """Names that are taken, in the order in which they were."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken

    def unused(self, name: str) -> str:
        found, number = name, 1
        while found in self.taken:
            number += 1
            found = f"{name}_{number}"
        self.taken.add(found)
        return found


def _bring(
    graph: GraphProto, outer: Mapping[str, str], names: _Names, weights: list[TensorProto], *, is_main: bool = False
) -> None:
    """Rename what ``graph`` defines, and move its constants to ``weights``; ``outer`` are the names around it."""
    scope = dict(outer)

    def define(name: str) -> str:
        if not name:
            return name
        scope[name] = name if is_main else names.unused(name)
        return scope[name]

    for value in graph.input:
        value.name = define(value.name)
    for tensor in graph.initializer:
        tensor.name = define(tensor.name)
    if not is_main:
        weights.extend(graph.initializer)
        del graph.initializer[:]
    kept: list[NodeProto] = []
    for node in graph.node:
        node.input[:] = [scope.get(name, name) for name in node.input]
        for inner in _graphs(node):
            _bring(inner, scope, names, weights)
        node.output[:] = [define(name) for name in node.output]
        tensor_of = _constant(node)
        if tensor_of is None:
            kept.append(node)
        else:
            weights.append(tensor_of)
    nodes = [_copied(node) for node in kept]
    del graph.node[:]
    graph.node.extend(nodes)
    for value in graph.output:
        value.name = scope.get(value.name, value.name)
    del graph.value_info[:]


def _copied(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy


def _graphs(node: NodeProto) -> Iterator[GraphProto]:
    return (entry.g for entry in node.attribute if entry.type == AttributeProto.GRAPH)


def _constant(node: NodeProto) -> TensorProto | None:
    """Return the content of a Constant, None for another node, or one that holds no numbers."""
    if node.op_type != "Constant" or node.domain not in STANDARD:
        return None
    (entry,) = node.attribute
    if entry.name == "value" and entry.t.data_type != TensorProto.STRING:
        tensor = TensorProto()
        tensor.CopyFrom(entry.t)
        tensor.name = node.output[0]
        return tensor
    kinds = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
    if entry.name not in kinds:
        return None
    return numpy_helper.from_array(np.array(helper.get_attribute_value(entry), kinds[entry.name]), node.output[0])
