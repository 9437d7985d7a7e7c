"""How often a WHILE runs, as far as its graphs tell: counters with a constant step that are compared with a limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forge_pipeline.frontends.tflite.model import Graph, Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """One of the loop's values, by its place, that grows by ``step`` as long as it is less than the limit.

    The limit is a constant, or the loop's value at ``limit_place``, which stays as it is.
    """

    place: int
    step: int
    limit: int | None
    limit_place: int | None


def counters(condition: Graph, body: Graph) -> list[Counter | None]:
    """Return the counters that all have to be below their limits; None for each test that is something else."""
    if len(condition.outputs) != 1 or not len(condition.inputs) == len(body.inputs) == len(body.outputs):
        return [None]
    (flag,) = condition.outputs.values()
    return [_counter(condition, body, test) for test in _tests(condition, flag)]


def _made(graph: Graph, index: int) -> Operator | None:
    return next((op for op in graph.operators if index in op.outputs), None)


def _tests(graph: Graph, flag: int) -> list[Operator | None]:
    """Return the comparisons that all have to hold; None for what is no comparison."""
    op = _made(graph, flag)
    if op is not None and op.name == "LOGICAL_AND":
        return [test for index in op.inputs for test in _tests(graph, index)]
    return [op if op is not None and op.name in ("LESS", "GREATER") else None]


def _counter(condition: Graph, body: Graph, test: Operator | None) -> Counter | None:
    if test is None:
        return None
    mine, limit = test.inputs if test.name == "LESS" else reversed(test.inputs)
    places = list(condition.inputs.values())
    if mine not in places:
        return None
    step = _step(body, places.index(mine))
    constant = integer(condition.tensors[limit].data)
    fixed = places.index(limit) if limit in places and _stays(body, places.index(limit)) else None
    if step is None or step < 1 or (constant is None and fixed is None):
        return None
    return Counter(place=places.index(mine), step=step, limit=constant, limit_place=fixed)


def integer(data: np.ndarray | None) -> int | None:
    """Return the only number of a constant, if it is an integer."""
    if data is None or data.size != 1 or not np.issubdtype(data.dtype, np.integer):
        return None
    return int(data.reshape(-1)[0])


def _stays(body: Graph, place: int) -> bool:
    tensor = list(body.inputs.values())[place]
    is_integer = body.tensors[tensor].dtype in ("int32", "int64")
    return is_integer and list(body.outputs.values())[place] == tensor


def _step(body: Graph, place: int) -> int | None:
    """Return what a step of the loop adds to the value at ``place``."""
    mine = list(body.inputs.values())[place]
    op = _made(body, list(body.outputs.values())[place])
    if op is None or op.name != "ADD" or mine not in op.inputs:
        return None
    other = op.inputs[1 - op.inputs.index(mine)]
    return integer(body.tensors[other].data)
