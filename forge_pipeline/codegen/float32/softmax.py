"""Softmax and its logarithm along the last axis, of any length: a row at a time, in whole vectors.

Lanes have maxima and sums of their own, which are put together in halves: a chain of as many operations as the lanes'
logarithm. The last vector is moved back to end with the row; what it has in common with the one before is not added up
again. Powers lie in the result until their sum is known, by whose reciprocal they are multiplied: a division of vectors
takes as long as the exponential does.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.script import tirx as T

from forge_pipeline.codegen.layout.builder import Graph, Value, has_known_shape, shape_of
from forge_pipeline.codegen.sorting.rows import Extents, Rows, attributes, called, made_once, own
from forge_pipeline.codegen.tir import primitives, script

NAME = "softmax"
KIND = "float32"


def normalize(graph: Graph, call: relax.Call) -> Value | None:
    """Take softmax along the last axis of float32 tensors, unless its extent is known to fill no vector."""
    operand = call.args[0]
    if not has_known_shape(operand, symbolic_axes=range(8)) or operand.ty.dtype != KIND:
        return None
    shape, axis, lanes = shape_of(operand), int(call.attrs.axis), graph.machine.computing(KIND).lanes
    if len(shape) < 2 or axis not in (-1, len(shape) - 1) or (isinstance(shape[-1], int) and shape[-1] < lanes):
        return None
    if 0 in shape:
        return None
    is_parallel = 4 * primitives.work_of(shape) >= primitives.SERIAL_WORK
    kernel = softmax_kernel(shape, lanes, is_logarithm=call.op.name.endswith("log_softmax"), is_parallel=is_parallel)
    (shares,) = called(graph.builder, kernel, [graph.plain(graph.look(operand))], [(shape, KIND)])
    return Value(plain=shares)


@made_once
def softmax_kernel(tensor: Extents, lanes: int, *, is_logarithm: bool, is_parallel: bool) -> tirx.PrimFunc:
    """Return ``(data) -> (shares)`` of one shape, or their logarithms, along the last axis."""
    (shape,) = own(tensor)
    rows = Rows(shape, len(shape) - 1)
    count, length = rows.outer, rows.length
    whole, rest = length // lanes, length % lanes
    loop = T.parallel if is_parallel else T.serial

    def at(row: Any, place: Any) -> Any:
        return rows.at(row, place, tirx.const(0, "int64"))

    def powers(value: Any, most: Any) -> Any:
        return tirx.exp(value - most)

    def result(value: Any, power: Any, most: Any, total: Any) -> Any:
        return (value - most) - total if is_logarithm else power * total

    def finished(total: Any) -> Any:
        return tirx.log(total) if is_logarithm else tirx.const(1, KIND) / total

    @script.prim_func(s_tir=True, private=True)
    def softmax(a: T.handle, b: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes("log_softmax" if is_logarithm else NAME))
        X = T.match_buffer(a, shape, KIND)
        Y = T.match_buffer(b, shape, KIND)
        for row in loop(count):
            with T.sblock("row"):
                r = T.axis.opaque(count, row)
                T.reads()
                T.writes()
                most = T.sblock_alloc_buffer((lanes,), KIND, scope="local")
                sums = T.sblock_alloc_buffer((lanes,), KIND, scope="local")
                last = T.sblock_alloc_buffer((lanes,), KIND, scope="local")
                top = T.sblock_alloc_buffer((1,), KIND, scope="local")
                total = T.sblock_alloc_buffer((1,), KIND, scope="local")
                if length >= lanes:
                    for lane in T.vectorized(lanes):
                        most[lane] = X[at(r, length - lanes + lane)]
                    for turn in T.serial(whole):
                        for lane in T.vectorized(lanes):
                            most[lane] = T.max(most[lane], X[at(r, turn * lanes + lane)])
                    top[0] = script.over_lanes(most, lanes, tirx.max)
                    for lane in T.vectorized(lanes):
                        sums[lane] = T.float32(0)
                    for turn in T.serial(whole):
                        for lane in T.vectorized(lanes):
                            last[lane] = powers(X[at(r, turn * lanes + lane)], top[0])
                        for lane in T.vectorized(lanes):
                            sums[lane] = sums[lane] + last[lane]
                        if not is_logarithm:
                            for lane in T.vectorized(lanes):
                                Y[at(r, turn * lanes + lane)] = last[lane]
                    if rest > 0:
                        for lane in T.vectorized(lanes):
                            last[lane] = powers(X[at(r, length - lanes + lane)], top[0])
                        for lane in T.vectorized(lanes):
                            sums[lane] = sums[lane] + T.Select(
                                T.Cast("int64", lane) >= lanes - rest, last[lane], T.float32(0)
                            )
                    total[0] = finished(script.over_lanes(sums, lanes, lambda left, right: left + right))
                    for turn in T.serial(whole):
                        for lane in T.vectorized(lanes):
                            Y[at(r, turn * lanes + lane)] = result(
                                X[at(r, turn * lanes + lane)], Y[at(r, turn * lanes + lane)], top[0], total[0]
                            )
                    if rest > 0:
                        for lane in T.vectorized(lanes):
                            Y[at(r, length - lanes + lane)] = result(
                                X[at(r, length - lanes + lane)], last[lane], top[0], total[0]
                            )
                else:
                    top[0] = T.float32("-inf")
                    total[0] = T.float32(0)
                    for i in T.serial(length):
                        top[0] = T.max(top[0], X[at(r, i)])
                    for i in T.serial(length):
                        Y[at(r, i)] = powers(X[at(r, i)], top[0])
                        total[0] = total[0] + Y[at(r, i)]
                    total[0] = finished(total[0])
                    for i in T.serial(length):
                        Y[at(r, i)] = result(X[at(r, i)], Y[at(r, i)], top[0], total[0])

    return softmax


HANDLERS = {"relax.nn.log_softmax": normalize, "relax.nn.softmax": normalize}
