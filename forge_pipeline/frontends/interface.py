"""Names of inputs and outputs, put back after an exporter gave its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

from onnx import GraphProto, ModelProto, helper

BATCH = "N"


def rename(model: ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Call the inputs and outputs of ``model`` so, by position, in place; "" leaves a name as it is.

    An inner value that already has such a name gives way. An output that is an input too is copied first.
    """
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    given = [value.name for value in graph.input if value.name not in weights]
    _own_outputs(graph, {*given, *weights})
    wanted = dict(zip(given, inputs, strict=True))
    wanted |= dict(zip([value.name for value in graph.output], outputs, strict=True))
    mapping = {old: new for old, new in wanted.items() if new and new != old}
    taken = _names(graph)
    fresh = (f"inner_{number}" for number in count())
    for name in sorted(set(mapping.values()) & (taken - mapping.keys())):
        mapping[name] = next(other for other in fresh if other not in taken)
    _apply(graph, mapping)


def name_open_sizes(model: ModelProto) -> None:
    """Name the open sizes of the interface, in place: N for the leading one of an input, else the input and its axis.

    Exporters number them. An output's open size takes the name of the input's that it is, where that is known.
    """
    new: dict[str, str] = {}
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_value < 1:
                dim.dim_param = new.setdefault(
                    dim.dim_param or f"?{value.name}{axis}", open_size_name(value.name, axis)
                )
    for value in (*model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in new:
                dim.dim_param = new[dim.dim_param]


def open_size_name(name: str, axis: int) -> str:
    """Return what the open extent at ``axis`` of the input ``name`` is called."""
    return BATCH if axis == 0 else f"{name}_{axis}"


def _own_outputs(graph: GraphProto, others: set[str]) -> None:
    """Give each output a value of its own: no input, no weight, none that is listed twice."""
    seen = set(others)
    for index, value in enumerate(graph.output):
        if value.name in seen:
            name = f"output_{index}_copy"
            graph.node.append(helper.make_node("Identity", [value.name], [name]))
            value.name = name
        seen.add(value.name)


def _names(graph: GraphProto) -> set[str]:
    names = {value.name for values in (graph.input, graph.output, graph.value_info) for value in values}
    names |= {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        names |= {*node.input, *node.output}
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                names |= _names(inner)
    return names


def _apply(graph: GraphProto, mapping: Mapping[str, str]) -> None:
    for values in (graph.input, graph.output, graph.value_info, graph.initializer):
        for value in values:
            value.name = mapping.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [mapping.get(name, name) for name in node.input]
        node.output[:] = [mapping.get(name, name) for name in node.output]
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                _apply(inner, mapping)
