"""Softmax over as many numbers as a call brings: a row at a time, whole vectors, the last one filled with -infinity."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.float32.open_matmul import crop
from forge_pipeline.codegen.layout.builder import Graph, Value, has_known_shape, shape_of
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine

NAME = "open_softmax"


def normalize(graph: Graph, call: relax.Call) -> Value | None:
    """Take softmax along the last axis of float32 tensors, where its extent is no number."""
    operand = call.args[0]
    if not has_known_shape(operand, symbolic_axes=range(8)):
        return None
    shape, axis = shape_of(operand), int(call.attrs.axis)
    if len(shape) < 2 or axis not in (-1, len(shape) - 1) or isinstance(shape[-1], int):
        return None
    tensor = graph.plain(graph.look(operand))
    vectors = graph.kernel(softmax, tensor, name="softmax", lanes=graph.machine.lanes)
    return Value(plain=graph.kernel(crop, vectors, shape[-1], name="crop"))


def softmax(x: te.Tensor, lanes: int) -> te.Tensor:
    """Describe softmax along the last axis, with partial maxima and sums for each of ``lanes``.

    The result is (..., vectors, lanes), of which the last vector may have too much.
    """
    *rows, length = x.shape
    count = tirx.floordiv(length + (lanes - 1), lanes)
    vectors = [te.reduce_axis((0, count), name) for name in ("vector", "summed")]
    lane = [te.reduce_axis((0, lanes), name) for name in ("lane", "added")]

    def filled(*index: Any) -> Any:
        *row, vector, place = index
        column = vector * lanes + place
        return tirx.if_then_else(column < length, x(*row, column), tirx.const(float("-inf"), x.dtype))

    row = te.compute((*rows, count, lanes), filled, name="row")
    maxima = te.compute(
        (*rows, lanes), lambda *i: te.max(row(*i[:-1], vectors[0], i[-1]), axis=[vectors[0]]), name="maxima"
    )
    most = te.compute(tuple(rows), lambda *i: te.max(maxima(*i, lane[0]), axis=[lane[0]]), name="most")
    powers = te.compute((*rows, count, lanes), lambda *i: te.exp(row(*i) - most(*i[:-2])), name="powers")
    sums = te.compute(
        (*rows, lanes), lambda *i: te.sum(powers(*i[:-1], vectors[1], i[-1]), axis=[vectors[1]]), name="sums"
    )
    total = te.compute(tuple(rows), lambda *i: te.sum(sums(*i, lane[1]), axis=[lane[1]]), name="total")

    return te.compute(
        (*rows, count, lanes), lambda *i: powers(*i) / total(*i[:-2]), name="shares", attrs={primitives.FAMILY: NAME}
    )


def schedule(sch: Schedule, machine: Machine) -> None:
    """Compute everything that a row needs while that row is in the first cache."""
    last = primitives.find(sch, NAME)
    rows = sch.get_loops(last)[:-2]
    shared = primitives.fuse(sch, rows)
    before = primitives.ancestors(sch, last)
    for block in reversed(before):
        sch.compute_at(block, shared, preserve_unit_loops=True)
    primitives.parallel_if_worth(sch, shared, primitives.UNKNOWN**2 * 4)
    for block in before:
        name = sch.get(block).name_hint
        if name in ("maxima", "sums"):
            place, vector = sch.get_loops(block)[-2:]
            sch.reorder(vector, place)
            sch.vectorize(place)
        elif name == "powers":
            sch.vectorize(sch.get_loops(block)[-1])
    sch.vectorize(sch.get_loops(last)[-1])


HANDLERS = {"relax.nn.softmax": normalize}
