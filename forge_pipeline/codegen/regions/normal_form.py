"""A model in which every name is one value's, in whichever graph it is, and all constants are the main graph's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from forge_pipeline.ir.constant_node import constant_tensor
from forge_pipeline.ir.values import unused


def normal_form(model: ModelProto) -> ModelProto:
    """Return ``model``, without local functions, with unique names and its constants as initializers."""
    result = ModelProto()
    result.CopyFrom(model)
    taken = {value.name for value in (*result.graph.input, *result.graph.initializer)}
    taken |= {name for node in result.graph.node for name in node.output}
    weights: list[TensorProto] = []
    _bring(result.graph, {}, taken, weights, is_main=True)
    result.graph.initializer.extend(weights)
    return result


def _bring(
    graph: GraphProto, outer: Mapping[str, str], taken: set[str], weights: list[TensorProto], *, is_main: bool = False
) -> None:
    """Rename what ``graph`` defines, and move its constants to ``weights``; ``outer`` are the names around it."""
    scope = dict(outer)

    def define(name: str) -> str:
        if not name:
            return name
        scope[name] = name if is_main else unused(name, taken, first=2)
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
            _bring(inner, scope, taken, weights)
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
