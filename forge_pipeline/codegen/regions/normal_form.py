"""A model in which every name is one value's, in whichever graph it is, and all constants are the main graph's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from forge_pipeline.ir.constant_node import constant_tensor


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
        for inner in graphs_of(node):
            _bring(inner, scope, names, weights)
        node.output[:] = [define(name) for name in node.output]
        tensor = constant_tensor(node)
        if tensor is None or tensor.data_type == TensorProto.STRING:
            kept.append(node)
        else:
            weights.append(TensorProto.FromString(tensor.SerializeToString()))
            weights[-1].name = node.output[0]
    nodes = [copied(node) for node in kept]
    del graph.node[:]
    graph.node.extend(nodes)
    for value in graph.output:
        value.name = scope.get(value.name, value.name)
    del graph.value_info[:]


def copied(node: NodeProto) -> NodeProto:
    """Return a copy of a node."""
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy


def graphs_of(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs of a node, in the order of its attributes."""
    return (entry.g for entry in node.attribute if entry.type == AttributeProto.GRAPH)
