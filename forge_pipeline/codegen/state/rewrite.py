"""A prepared model with caches as a session keeps them: tokens first, so that new ones go behind what is there.

``cache``, an input (tokens, ...) in the place of the one that the model had, is what there was; ``Append`` is the same
memory with new tokens behind. Attention over it reads it where it lies. Whatever else reads a cache gets it transposed,
which is a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import NodeProto, ValueInfoProto, helper

from forge_pipeline.codegen.state.attention import Attentions
from forge_pipeline.codegen.state.states import State
from forge_pipeline.ir.program_operators import APPEND, CACHED_ATTENTION, DOMAIN
from forge_pipeline.ir.sizes.analysis import analyse


def with_states(model: onnx.ModelProto, states: Sequence[State]) -> onnx.ModelProto:
    """Return ``model`` with states as its last inputs and outputs, and caches that have their tokens first."""
    if not states:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    producers = {name: node for node in made.graph.node for name in node.output if name}
    caches = {state.output: state.axis for state in states if state.axis is not None}
    Attentions(graph=made.graph, sizes=analyse(model), caches=caches, producers=producers).read_in_place()
    _turn_caches(made.graph, states)
    _put_last(made.graph.input, [state.input for state in states])
    _put_last(made.graph.output, [state.output for state in states])
    if all(item.domain != DOMAIN for item in made.opset_import):
        made.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return made


def _put_last(values: object, names: Sequence[str]) -> None:
    found = {value.name: value for value in values}  # type: ignore[attr-defined]
    rest = [value for name, value in found.items() if name not in names]
    ordered = [*rest, *(found[name] for name in names)]
    copies = [ValueInfoProto.FromString(value.SerializeToString()) for value in ordered]
    del values[:]  # type: ignore[attr-defined]
    values.extend(copies)  # type: ignore[attr-defined]


def _turn_caches(graph: onnx.GraphProto, states: Sequence[State]) -> None:
    """Give caches their tokens first, and what reads them otherwise the axes that it had."""
    nodes: list[NodeProto] = []
    taken = {name for node in graph.node for name in node.output}
    taken |= {value.name for value in (*graph.input, *graph.output)}
    caches = {state.output: state for state in states if state.axis is not None}
    renamed: dict[str, str] = {}
    values = {value.name: value for value in (*graph.input, *graph.output)}
    for state in caches.values():
        rank = len(values[state.input].type.tensor_type.shape.dim)
        for name in (state.input, state.output):
            renamed[name] = _fresh(f"{name}_turned", taken)
            _turn(values[name], state.axis or 0)
        nodes.append(_transposed(state.input, renamed[state.input], _back(state.axis or 0, rank)))
    for node in graph.node:
        grown = next((caches[name] for name in node.output if name in caches), None)
        if grown is None or grown.axis is None:
            if node.domain != DOMAIN or node.op_type != CACHED_ATTENTION:
                for place, name in enumerate(node.input):
                    node.input[place] = renamed.get(name, name)
            nodes.append(node)
            continue
        rank = len(values[grown.input].type.tensor_type.shape.dim)
        new = renamed.get(node.input[1], node.input[1])
        turned = _fresh(f"{new}_first", taken)
        nodes.append(_transposed(new, turned, _first(grown.axis, rank)))
        nodes.append(helper.make_node(APPEND, [grown.input, turned], [grown.output], domain=DOMAIN))
        nodes.append(_transposed(grown.output, renamed[grown.output], _back(grown.axis, rank)))
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _turn(value: ValueInfoProto, axis: int) -> None:
    """Put an axis first."""
    shape = value.type.tensor_type.shape
    dims = list(shape.dim)
    turned = [type(dim).FromString(dim.SerializeToString()) for dim in (dims[axis], *dims[:axis], *dims[axis + 1 :])]
    del shape.dim[:]
    shape.dim.extend(turned)


def _first(axis: int, rank: int) -> list[int]:
    return [axis, *(other for other in range(rank) if other != axis)]


def _back(axis: int, rank: int) -> list[int]:
    order = _first(axis, rank)
    return [order.index(place) for place in range(rank)]


def _transposed(name: str, result: str, order: list[int]) -> NodeProto:
    return helper.make_node("Transpose", [name], [result], name=result, perm=order)


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
