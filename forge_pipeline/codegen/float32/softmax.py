"""Softmax along the last axis, of any length: a row at a time, whole vectors, the last one filled with -infinity.

Lanes have maxima and sums of their own, which are put together in halves: a chain of as many operations as the lanes'
logarithm. Powers are multiplied by the reciprocal of their sum, as by every library that is fast: a division of
vectors takes as long as the exponential does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.layout.builder import Graph, Value, has_known_shape, shape_of
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine

NAME = "softmax"
IN_LANES = ("maxima", "sums")


def normalize(graph: Graph, call: relax.Call) -> Value | None:
    """Take softmax along the last axis of float32 tensors, unless its extent is known to fill no vector."""
    operand = call.args[0]
    if not has_known_shape(operand, symbolic_axes=range(8)):
        return None
    shape, axis, lanes = shape_of(operand), int(call.attrs.axis), graph.machine.lanes
    if len(shape) < 2 or axis not in (-1, len(shape) - 1) or (isinstance(shape[-1], int) and shape[-1] < lanes):
        return None
    tensor = graph.plain(graph.look(operand))
    return Value(plain=graph.kernel(softmax, tensor, name="softmax", lanes=lanes))


def softmax(x: te.Tensor, lanes: int) -> te.Tensor:
    """Describe softmax along the last axis, with partial maxima and sums for each of ``lanes``."""
    *rows, length = x.shape
    whole = tirx.floordiv(length + (lanes - 1), lanes) * lanes

    def filled(*index: Any) -> Any:
        return tirx.if_then_else(index[-1] < length, x(*index), tirx.const(float("-inf"), x.dtype))

    row = te.compute((*rows, whole), filled, name="row")
    most = _over_lanes(row, lanes, te.max, tirx.max, ("maxima", "most"))
    powers = te.compute((*rows, whole), lambda *i: te.exp(row(*i) - most(*i[:-1])), name="powers")
    total = _over_lanes(powers, lanes, te.sum, lambda a, b: a + b, ("sums", "total"))
    inverse = te.compute(tuple(rows), lambda *i: tirx.const(1, x.dtype) / total(*i), name="inverse")
    return te.compute(x.shape, lambda *i: powers(*i) * inverse(*i[:-1]), name="shares", attrs={primitives.FAMILY: NAME})


def _over_lanes(
    values: te.Tensor,
    lanes: int,
    reduce: Callable[..., Any],
    combine: Callable[[Any, Any], Any],
    names: tuple[str, str],
) -> te.Tensor:
    """Describe a reduction of (..., whole vectors) to (...): each lane by itself, then the lanes by halves."""
    *rows, whole = values.shape
    vector = te.reduce_axis((0, tirx.floordiv(whole, lanes)), "vector")
    partial = te.compute(
        (*rows, lanes), lambda *i: reduce(values(*i[:-1], vector * lanes + i[-1]), axis=[vector]), name=names[0]
    )

    def together(*row: Any) -> Any:
        found = [partial(*row, lane) for lane in range(lanes)]
        while len(found) > 1:
            half = len(found) // 2
            found = [combine(found[lane], found[lane + half]) for lane in range(half)]
        return found[0]

    return te.compute(tuple(rows), together, name=names[1])


def schedule(sch: Schedule, machine: Machine) -> None:
    """Compute everything that a row needs while that row is in the first cache."""
    last = primitives.find(sch, NAME)
    rows = sch.get_loops(last)[:-1]
    extents = [primitives.extent(sch, loop) or primitives.UNKNOWN for loop in sch.get_loops(last)]
    shared = primitives.fuse(sch, rows)
    before = primitives.ancestors(sch, last)
    for block in reversed(before):
        sch.compute_at(block, shared, preserve_unit_loops=True)
    primitives.parallel_if_worth(sch, shared, primitives.product(extents) * 4)
    for block in before:
        name = sch.get(block).name_hint
        if name in IN_LANES:
            lane, vector = sch.get_loops(block)[-2:]
            sch.reorder(vector, lane)
            sch.vectorize(lane)
            sch.decompose_reduction(block, vector)
        elif name == "powers":
            sch.vectorize(sch.split(sch.get_loops(block)[-1], [None, machine.lanes])[1])
    length = extents[-1]
    if primitives.extent(sch, sch.get_loops(last)[-1]) is not None and length % machine.lanes == 0:
        sch.vectorize(sch.split(sch.get_loops(last)[-1], [None, machine.lanes])[1])


HANDLERS = {"relax.nn.softmax": normalize}
