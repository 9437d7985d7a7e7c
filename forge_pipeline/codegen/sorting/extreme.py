"""The place of the largest or the smallest of each row: ONNX's ArgMax and ArgMin, with their choice among equals.

Rows that lie side by side go together, a lane for each. Along the last axis, lanes look through a part of the row each,
and what they found is compared at last; the last vector is moved back to end with the row.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.script import tirx as T

from forge_pipeline.codegen.sorting.order import before, equal
from forge_pipeline.codegen.sorting.rows import TOGETHER, Extents, Rows, attributes, called, extents_of, made_once, own
from forge_pipeline.codegen.tir import script

VECTORS = ("float32", "int32", "uint8", "int8")
"""Types that are compared in vectors."""

LANES = 8
"""Parts of a row along the last axis."""


@made_once
def extreme_kernel(data: Extents, axis: int, dtype: str, *, largest: bool, last: bool) -> tirx.PrimFunc:
    """Return ``(data) -> (places)``, whose extent along the axis is 1."""
    (shape,) = own(data)
    rows = Rows(shape, axis)
    single, none = rows.resized(tirx.const(1, "int64")), tirx.const(0, "int64")

    def is_better(value: Any, best: Any) -> Any:
        better = before(value, best, descending=largest)
        return tirx.any(better, equal(value, best)) if last else better

    def is_chosen(value: Any, at: Any, best: Any, place: Any) -> Any:
        same = tirx.all(equal(value, best), at > place if last else at < place)
        return tirx.any(before(value, best, descending=largest), same)

    name, vectors = "arg_max" if largest else "arg_min", T.vectorized if dtype in VECTORS else T.serial

    @script.inline
    def one_row(A, P, best, place, o, j):  # type: ignore[no-untyped-def]
        place[0] = 0
        if rows.length > 0:  # a row of nothing has no extreme
            best[0] = A[rows.at(o, T.int64(0), j)]
        for i in T.serial(rows.length - 1):
            if is_better(A[rows.at(o, i + 1, j)], best[0]):
                best[0] = A[rows.at(o, i + 1, j)]
                place[0] = T.Cast("int32", i + 1)
        P[single.at(o, T.int64(0), j)] = T.Cast("int64", place[0])

    @script.prim_func(s_tir=True, private=True)
    def side_by_side(a: T.handle, b: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes(name))
        A = T.match_buffer(a, rows.shape, dtype)
        P = T.match_buffer(b, single.shape, "int64")
        for group in T.parallel(rows.groups):
            with T.sblock("rows"):
                o = T.axis.opaque(rows.outer, rows.first(group)[0])
                j = T.axis.opaque(rows.inner, rows.first(group)[1])
                T.reads()
                T.writes()
                best = T.sblock_alloc_buffer((TOGETHER,), dtype, scope="local")
                place = T.sblock_alloc_buffer((TOGETHER,), "int32", scope="local")
                if rows.are_wide:
                    for lane in vectors(TOGETHER):
                        place[lane] = 0
                    if rows.length > 0:
                        for lane in vectors(TOGETHER):
                            best[lane] = A[rows.at(o, T.int64(0), j + lane)]
                    for i in T.serial(rows.length - 1):
                        for lane in vectors(TOGETHER):
                            place[lane] = T.Select(
                                is_better(A[rows.at(o, i + 1, j + lane)], best[lane]),
                                T.Cast("int32", i + 1),
                                place[lane],
                            )
                        for lane in vectors(TOGETHER):
                            best[lane] = T.Select(
                                is_better(A[rows.at(o, i + 1, j + lane)], best[lane]),
                                A[rows.at(o, i + 1, j + lane)],
                                best[lane],
                            )
                    for lane in vectors(TOGETHER):
                        P[single.at(o, T.int64(0), j + lane)] = T.Cast("int64", place[lane])
                else:
                    one_row(A, P, best, place, o, j)

    @script.prim_func(s_tir=True, private=True)
    def along(a: T.handle, b: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes(name))
        A = T.match_buffer(a, rows.shape, dtype)
        P = T.match_buffer(b, single.shape, "int64")
        for row in T.parallel(rows.outer):
            with T.sblock("row"):
                o = T.axis.opaque(rows.outer, row)
                T.reads()
                T.writes()
                best = T.sblock_alloc_buffer((LANES,), dtype, scope="local")
                place = T.sblock_alloc_buffer((LANES,), "int32", scope="local")
                if rows.length >= LANES:
                    for lane in vectors(LANES):
                        place[lane] = 0
                    for lane in vectors(LANES):
                        best[lane] = A[rows.at(o, T.Cast("int64", lane), none)]
                    for turn in T.serial((rows.length - 1) // LANES):
                        begin = T.meta_var(tirx.min((turn + 1) * LANES, rows.length - LANES))
                        for lane in vectors(LANES):
                            place[lane] = T.Select(
                                is_better(A[rows.at(o, begin + lane, none)], best[lane]),
                                T.Cast("int32", begin),
                                place[lane],
                            )
                        for lane in vectors(LANES):
                            best[lane] = T.Select(
                                is_better(A[rows.at(o, begin + lane, none)], best[lane]),
                                A[rows.at(o, begin + lane, none)],
                                best[lane],
                            )
                    for lane in T.serial(LANES - 1):
                        if is_chosen(best[lane + 1], place[lane + 1] + lane + 1, best[0], place[0]):
                            best[0] = best[lane + 1]
                            place[0] = place[lane + 1] + lane + 1
                    P[single.at(o, T.int64(0), none)] = T.Cast("int64", place[0])
                else:
                    one_row(A, P, best, place, o, none)

    return along if rows.axis == len(shape) - 1 else side_by_side


def extreme(builder: Any, value: relax.Expr, *, axis: int, largest: bool, last: bool = False) -> relax.Expr:
    """Return the place in int64 of each row's extreme, kept as an axis of 1; of equal ones the first or ``last``."""
    shape = extents_of(value)
    rows = Rows(shape, axis % len(shape))
    kernel = extreme_kernel(shape, rows.axis, str(value.ty.dtype), largest=largest, last=last)
    (places,) = called(builder, kernel, [value], [(rows.resized(tirx.const(1, "int64")).shape, "int64")])
    return places
