"""Passes within the graphs of If, Loop and Scan: each body is edited as a graph of its own.

What a body reads from outside is there as inputs, and as constants where it is constant outside. The names of the
whole model are taken, as ONNX forbids that an inner value hides an outer one.
"""

from __future__ import annotations

from collections.abc import Callable

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper

from forge_pipeline.ir.traversal import captured
from forge_pipeline.passes.graph import Graph

OUTSIDE = "@outside"  # a body may give a symbol another meaning: what comes from outside keeps its own


def apply_to_bodies(graph: Graph, call: Callable[[Graph], int]) -> int:
    """Apply ``call`` to every body in ``graph``, and to those within; return the number of changes."""
    changes = 0
    for node in graph.nodes:
        for attribute in node.attribute:
            if node in graph and attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
                changes += _attribute(graph, node, attribute, call)
    return changes


def _attribute(graph: Graph, node: NodeProto, attribute: AttributeProto, call: Callable[[Graph], int]) -> int:
    total = 0
    for body in [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs:
        inner = _open_body(graph, body)
        changes = call(inner)
        changes += apply_to_bodies(inner, call)
        if changes:
            graph.set_body(node, body, _close_body(inner, body))
        total += changes
    return total


def _open_body(graph: Graph, body: GraphProto) -> Graph:
    model = ModelProto()
    model.CopyFrom(graph.header)
    model.graph.CopyFrom(body)
    for name in captured(body):
        tensor = graph.constant(name)
        if tensor is not None and graph.is_constant(name):
            model.graph.initializer.append(tensor)
            continue
        value = model.graph.input.add(name=name)
        if graph.has_type(name):
            shape = graph.shape(name)
            dims = None if shape is None else [f"{d}{OUTSIDE}" if isinstance(d, str) else d for d in shape]
            value.CopyFrom(helper.make_tensor_value_info(name, graph.elem_type(name), dims))
    return Graph(model, names=graph.names)


def _close_body(inner: Graph, body: GraphProto) -> GraphProto:
    """Return the edited body without what it had been given from outside."""
    outside = set(captured(body))
    made = inner.model().graph
    result = GraphProto()
    result.CopyFrom(made)
    for field in (result.initializer, result.input):
        kept = [entry for entry in field if entry.name not in outside]
        del field[:]
        field.extend(kept)
    result.doc_string = body.doc_string
    return result
