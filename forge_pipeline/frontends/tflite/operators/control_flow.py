"""TensorFlow Lite's operators that run other graphs, and its resource variables.

A graph that runs once, whatever the data, becomes a part of the one that runs it.
"""

from __future__ import annotations

import numpy as np

from forge_pipeline.frontends.tflite.builder import Builder, Converter, option, unsupported, value_info
from forge_pipeline.frontends.tflite.model import Operator


def branch(b: Builder, op: Operator) -> None:
    """IF: both branches take what follows the condition; in ONNX they read it from outside."""
    condition = _flag(b, b.stored(op.inputs[0]))
    given = [b.stored(index) for index in op.inputs[1:]]
    bodies = []
    for side in ("Then", "Else"):
        inner = b.nested(getattr(op.options, f"{side}SubgraphIndex")(), given)
        _check_count(op, inner)
        bodies.append(inner.body(side.lower(), []))
    name = b.node("If", [condition], len(op.outputs), then_branch=bodies[0], else_branch=bodies[1])
    _give(b, op, name)


def loop(b: Builder, op: Operator) -> None:
    """WHILE: ONNX's Loop is told at the end of a step whether there is another one, and once before the first."""
    if option(op, "CondSubgraphIndex", None) is None:
        raise unsupported("a loop without its graphs", "a condition and a body")
    given = [b.stored(index) for index in op.inputs]
    first = _condition(b, op, given)
    iteration, going = b.fresh("iteration"), b.fresh("going")
    names = [b.fresh("carried") for _ in op.inputs]
    body = b.nested(op.options.BodySubgraphIndex(), names)
    _check_count(op, body)
    inputs = [value_info(iteration, "int64", ()), value_info(going, "bool", ())]
    inputs += [
        value_info(name, body.tensor(index).dtype, body.shape(index))
        for name, index in zip(names, body.source.inputs.values(), strict=True)
    ]
    again = _condition(body, op, body.results())
    graph = body.body("body", inputs, [again])
    _give(b, op, b.node("Loop", ["", first, *given], len(op.outputs), body=graph))


def _condition(b: Builder, op: Operator, values: list[str]) -> str:
    (flag,) = b.nested(op.options.CondSubgraphIndex(), values, inline=True).results()
    return _flag(b, flag)


def _flag(b: Builder, name: str) -> str:
    """Return a condition, which may be a tensor of one flag, without dimensions."""
    return b.node("Reshape", [name, b.constant(np.zeros(0, np.int64))])


def _check_count(op: Operator, inner: Builder) -> None:
    if len(inner.source.outputs) != len(op.outputs):
        raise unsupported(f"a graph with {len(inner.source.outputs)} results", f"{len(op.outputs)} results")


def _give(b: Builder, op: Operator, name: str) -> None:
    for place, index in enumerate(op.outputs):
        b.give(index, f"{name}_{place}" if place else name)


def call(field_name: str) -> Converter:
    """CALL, STABLEHLO_COMPOSITE: another graph in the place of the operator."""

    def convert(b: Builder, op: Operator) -> None:
        given = [b.stored(index) for index in op.inputs]
        inner = b.nested(int(option(op, field_name, -1)), given, inline=True)
        _check_count(op, inner)
        for index, name in zip(op.outputs, inner.results(), strict=True):
            b.give(index, name)

    return convert


# Variables that operators read and write by a handle.


def call_once(b: Builder, op: Operator) -> None:
    """CALL_ONCE: a graph that runs before the first call and tells with what variables begin."""
    b.at_top("a graph that runs once")
    place, graphs = int(option(op, "InitSubgraphIndex", -1)), b.shared.model.graphs
    if not 0 <= place < len(graphs):
        raise unsupported(f"subgraph {place} of {len(graphs)}", "one of the file's")
    graph, keys = graphs[place], dict[int, str]()
    for inner in graph.operators:
        if inner.name == "VAR_HANDLE":
            keys[inner.outputs[0]] = _key(inner)
            continue
        data = graph.tensors[inner.inputs[1]].data if inner.name == "ASSIGN_VARIABLE" else None
        if data is None or inner.inputs[0] not in keys:
            raise unsupported(f"{inner.name} before the first call", "variables that begin with constants")
        b.shared.state.begin(keys[inner.inputs[0]], data)


def handle(b: Builder, op: Operator) -> None:
    """VAR_HANDLE: a handle is told by its variable's name."""
    b.at_top("a variable")
    b.give(op.outputs[0], _key(op))


def _key(op: Operator) -> str:
    name = option(op, "SharedName", b"") or b""
    return f"variable:{(option(op, 'Container', b'') or b'').decode()}/{name.decode()}"


def read_variable(b: Builder, op: Operator) -> None:
    """READ_VARIABLE."""
    key, tensor = b.stored(op.inputs[0]), b.tensor(op.outputs[0])
    b.give(op.outputs[0], b.shared.state.read(key, tensor, key.partition("/")[2]))


def assign_variable(b: Builder, op: Operator) -> None:
    """ASSIGN_VARIABLE."""
    b.shared.state.write(b.stored(op.inputs[0]), b.stored(op.inputs[1]))
