"""Depth-first post-order over an ONNX graph: the order that depends on edges alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

from forge_pipeline.errors import ModelError


def post_order(
    graph: GraphProto, *, roots: Iterable[str] | None = None, without: NodeProto | None = None
) -> Iterator[NodeProto | str]:
    """Yield what the outputs (or ``roots``) depend on, each item once and after what it depends on.

    Items are nodes, and names of values that no node of this graph produces (inputs, initializers and, in a
    subgraph, values of an enclosing graph). A node's dependencies are its inputs in order, then what its
    subgraphs take from outside. Raises ModelError for a cycle and for a value with two producers. Iterative,
    because a model may be deeper than Python's stack.
    """
    nodes = graph.node
    producer = _producers(graph, without)
    entered: set[int] = set()
    done: set[int] = set()
    leaves: set[str] = set()
    waiting: list[int] = []
    stack: list[Iterator[str]] = [iter([value.name for value in graph.output] if roots is None else roots)]
    while stack:
        for name in stack[-1]:
            index = producer.get(name)
            if index is None:
                if name not in leaves:
                    leaves.add(name)
                    yield name
            elif index not in entered:
                entered.add(index)
                waiting.append(index)
                stack.append(iter(needs(nodes[index])))
                break
            elif index not in done:
                raise ModelError(
                    where=f"node {nodes[index].name!r} ({nodes[index].op_type})",
                    expected="a graph without cycles",
                    found=f"its output {name!r} is needed to compute it",
                    fix="the file is damaged or was edited by hand: export the model again",
                )
        else:
            stack.pop()
            if waiting:
                index = waiting.pop()
                done.add(index)
                yield nodes[index]


def captured(graph: GraphProto) -> list[str]:
    """Return the values of enclosing graphs that a subgraph uses, in order of first use."""
    own = {value.name for value in graph.input}
    own.update(tensor.name for tensor in graph.initializer)
    own.update(tensor.values.name for tensor in graph.sparse_initializer)
    return [item for item in post_order(graph) if isinstance(item, str) and item not in own]


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs among a node's attributes, in the order of the attributes' names."""
    for attribute in sorted(node.attribute, key=lambda item: item.name):
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def needs(node: NodeProto) -> list[str]:
    """Return the names of the values that a node depends on, its subgraphs' captures included."""
    names = [name for name in node.input if name]
    for graph in subgraphs(node):
        names.extend(captured(graph))
    return names


def _producers(graph: GraphProto, without: NodeProto | None) -> dict[str, int]:
    producer: dict[str, int] = {}
    taken = {value.name for value in graph.input}
    taken.update(tensor.name for tensor in graph.initializer)
    taken.update(tensor.values.name for tensor in graph.sparse_initializer)
    for index, node in enumerate(graph.node):
        for name in node.output:
            if not name or node is without:
                continue
            if name in producer or name in taken:
                raise ModelError(
                    where=f"node {node.name!r} ({node.op_type})",
                    expected="every value to be defined once",
                    found=f"a second definition of {name!r}",
                    fix="the file is damaged or was edited by hand: export the model again",
                )
            producer[name] = index
    return producer


def every_node(model: ModelProto) -> Iterator[NodeProto]:
    """Yield every node of a model as it is written down: main graph, subgraphs and local functions."""
    for graph in every_graph(model):
        yield from graph.node
    for function in model.functions:
        yield from nodes_below(function.node)


def every_graph(model: ModelProto) -> Iterator[GraphProto]:
    """Yield the main graph and every subgraph in it, outer ones first."""
    yield model.graph
    for node in nodes_below(model.graph.node):
        yield from subgraphs(node)


def nodes_below(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield ``nodes`` and every node of the graphs in their attributes, each after the node that holds it."""
    pending = list(nodes)[::-1]
    while pending:
        node = pending.pop()
        yield node
        for graph in subgraphs(node):
            pending.extend(graph.node)
