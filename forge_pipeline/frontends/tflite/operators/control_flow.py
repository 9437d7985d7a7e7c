"""TensorFlow Lite's operators that run other graphs, and its resource variables.

A graph that runs once, whatever the data, becomes a part of the one that runs it.
"""

from __future__ import annotations

import numpy as np

from forge_pipeline.frontends.tflite.builder import Builder, option, unsupported, value_info
from forge_pipeline.frontends.tflite.model import Operator
from forge_pipeline.frontends.tflite.operators.trip_count import Counter, counters, integer


def branch(b: Builder, op: Operator) -> None:
    """IF: both branches take what follows the condition; in ONNX they read it from outside."""
    condition = _flag(b, b.stored(op.inputs[0]))
    given = [b.stored(index) for index in op.inputs[1:]]
    bodies = []
    for side, graph in zip(("then", "else"), op.graphs, strict=True):
        inner = b.nested(graph, given)
        _check_count(op, inner)
        bodies.append(inner.body(side, []))
    name = b.node("If", [condition], len(op.outputs), then_branch=bodies[0], else_branch=bodies[1])
    _give(b, op, name)


def loop(b: Builder, op: Operator) -> None:
    """WHILE: ONNX's Loop is told at the end of a step whether there is another one, and once before the first.

    Where it is known how often it runs at most, it is told that; and nothing else, where nothing else ends the loop.
    """
    given = [b.stored(index) for index in op.inputs]
    tests = _tests(b, op)
    counts = [_count(b, op, test) for test in tests if test is not None]
    exact = bool(counts) and len(counts) == len(tests)
    count = _least(b, counts) if counts else ""
    first = "" if exact else _condition(b, op, given)
    iteration, going = b.fresh("iteration"), b.fresh("going")
    names = [b.fresh("carried") for _ in op.inputs]
    body = b.nested(op.graphs[1], names)
    _check_count(op, body)
    inputs = [value_info(iteration, "int64", ()), value_info(going, "bool", ())]
    inputs += [
        value_info(name, body.tensor(index).dtype, body.shape(index))
        for name, index in zip(names, body.source.inputs.values(), strict=True)
    ]
    again = going if exact else _condition(body, op, body.results())
    graph = body.body("body", inputs, [again])
    _give(b, op, b.node("Loop", [count, first, *given], len(op.outputs), body=graph))


def _tests(b: Builder, op: Operator) -> list[Counter | None]:
    graphs = b.shared.model.graphs
    if any(not 0 <= place < len(graphs) for place in op.graphs):
        return [None]
    condition, body = (graphs[place] for place in op.graphs)
    return counters(condition, body)


def _least(b: Builder, counts: list[int | str]) -> str:
    known = [count for count in counts if isinstance(count, int)]
    names = [count for count in counts if isinstance(count, str)]
    names += [b.constant(np.int64(min(known)))] if known else []
    return b.node("Min", names) if len(names) > 1 else names[0]


def _count(b: Builder, op: Operator, counter: Counter) -> int | str:
    """Return how often ``counter`` is below its limit, as a number or a value; it starts where the operands say."""
    start = integer(b.tensor(op.inputs[counter.place]).data)
    limit = counter.limit
    if counter.limit_place is not None:
        limit = integer(b.tensor(op.inputs[counter.limit_place]).data)
    if start is not None and limit is not None:
        return max(0, -(-(limit - start) // counter.step))
    scalar = b.constant(np.zeros(0, np.int64))
    first = b.node("Reshape", [b.int64(op.inputs[counter.place]), scalar])
    if limit is not None:
        last = b.constant(np.int64(limit))
    else:
        last = b.node("Reshape", [b.int64(op.inputs[counter.limit_place or 0]), scalar])
    distance = b.node("Max", [b.node("Sub", [last, first]), b.constant(np.int64(0))])
    if counter.step == 1:
        return distance
    step = b.constant(np.int64(counter.step))
    return b.node("Div", [b.node("Add", [distance, b.constant(np.int64(counter.step - 1))]), step])


def _condition(b: Builder, op: Operator, values: list[str]) -> str:
    (flag,) = b.nested(op.graphs[0], values, inline=True).results()
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


def call(b: Builder, op: Operator) -> None:
    """CALL, STABLEHLO_COMPOSITE: another graph in the place of the operator."""
    given = [b.stored(index) for index in op.inputs]
    inner = b.nested(op.graphs[0], given, inline=True)
    _check_count(op, inner)
    for index, name in zip(op.outputs, inner.results(), strict=True):
        b.give(index, name)


# Variables that operators read and write by a handle.


def call_once(b: Builder, op: Operator) -> None:
    """CALL_ONCE: a graph that runs before the first call and tells with what variables begin."""
    b.at_top("a graph that runs once")
    place, graphs = op.graphs[0], b.shared.model.graphs
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
    """ASSIGN_VARIABLE, of a variable that a branch may have been given the handle of."""
    b.at_top("a variable that is written")
    b.shared.state.write(b.stored(op.inputs[0]), b.stored(op.inputs[1]))
