"""The k first of each row, by a heap with the worst of them on top: n log k steps, no memory beside the result.

Knuth, The Art of Computer Programming 3, 5.2.3. Of equal values the one at the lower place comes first, so that the
result is the same as that of a stable sort.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.script import tirx as T

from forge_pipeline.codegen.sorting.merge_sort import sort
from forge_pipeline.codegen.sorting.order import before, equal
from forge_pipeline.codegen.sorting.rows import Extents, Rows, attributes, called, extents_of, own
from forge_pipeline.codegen.tir import script

SORTED_PART = 4
"""Rows of which one in so many elements, or more, are wanted are sorted whole, which takes fewer steps for each."""


def heap_kernel(data: Extents, result: Any, axis: int, dtype: str, *, descending: bool) -> tirx.PrimFunc:
    """Return ``(data) -> (values, places)``: the first ``result`` of each row, in order."""
    shape, (kept,) = own(data, (result,))
    rows = Rows(shape, axis)
    at = rows.resized(kept).at

    def follows(left: Any, left_place: Any, right: Any, right_place: Any) -> Any:
        """Return whether the left one comes after the right one."""
        later = before(right, left, descending=descending)
        return tirx.any(later, tirx.all(equal(left, right), left_place > right_place))

    @script.prim_func(s_tir=True, private=True)
    def top_k_rows(a: T.handle, b: T.handle, c: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes("top_k"))
        A = T.match_buffer(a, rows.shape, dtype)
        V = T.match_buffer(b, rows.resized(kept).shape, dtype)
        P = T.match_buffer(c, rows.resized(kept).shape, "int64")

        @script.inline
        def swap(o, j, left, right, value, place):  # type: ignore[no-untyped-def]
            value[0] = V[at(o, left, j)]
            place[0] = P[at(o, left, j)]
            V[at(o, left, j)] = V[at(o, right, j)]
            P[at(o, left, j)] = P[at(o, right, j)]
            V[at(o, right, j)] = value[0]
            P[at(o, right, j)] = place[0]

        @script.inline
        def descend(o, j, first, count, node, worst, value, place):  # type: ignore[no-untyped-def]
            node[0] = first
            worst[0] = T.int64(-1)
            while worst[0] != node[0]:
                worst[0] = node[0]
                for side in T.serial(2):
                    if T.if_then_else(
                        2 * node[0] + 1 + side < count,
                        follows(
                            V[at(o, 2 * node[0] + 1 + side, j)], P[at(o, 2 * node[0] + 1 + side, j)],
                            V[at(o, worst[0], j)], P[at(o, worst[0], j)],
                        ),
                        False,
                    ):  # fmt: skip
                        worst[0] = 2 * node[0] + 1 + side
                if worst[0] != node[0]:
                    swap(o, j, node[0], worst[0], value, place)
                    node[0] = worst[0]
                    worst[0] = T.int64(-1)

        for row in T.parallel(rows.outer * rows.inner):
            with T.sblock("row"):
                o = T.axis.opaque(rows.outer, rows.split(row)[0])
                j = T.axis.opaque(rows.inner, rows.split(row)[1])
                T.reads()
                T.writes()
                node = T.sblock_alloc_buffer((1,), "int64", scope="local")
                worst = T.sblock_alloc_buffer((1,), "int64", scope="local")
                value = T.sblock_alloc_buffer((1,), dtype, scope="local")
                place = T.sblock_alloc_buffer((1,), "int64", scope="local")
                for i in T.serial(kept):
                    V[at(o, i, j)] = A[rows.at(o, i, j)]
                    P[at(o, i, j)] = T.Cast("int64", i)
                for i in T.serial(kept // 2):
                    descend(o, j, kept // 2 - 1 - i, kept, node, worst, value, place)
                if kept > 0:
                    for i in T.serial(rows.length - kept):
                        if before(A[rows.at(o, kept + i, j)], V[at(o, T.int64(0), j)], descending=descending):
                            V[at(o, T.int64(0), j)] = A[rows.at(o, kept + i, j)]
                            P[at(o, T.int64(0), j)] = kept + i
                            descend(o, j, T.int64(0), kept, node, worst, value, place)
                for i in T.serial(kept):
                    swap(o, j, T.int64(0), kept - 1 - i, value, place)
                    descend(o, j, T.int64(0), kept - 1 - i, node, worst, value, place)

    return top_k_rows


def top_k(builder: Any, value: relax.Expr, count: Any, *, axis: int, largest: bool) -> tuple[relax.Expr, relax.Expr]:
    """Return the ``count`` largest or smallest values of each row, best first, and their places in int64."""
    shape, dtype = extents_of(value), str(value.ty.dtype)
    rows = Rows(shape, axis % len(shape))
    if _is_large_part(count, rows.length):
        return sort(builder, value, axis=axis, descending=largest, result=count)
    kernel = heap_kernel(shape, count, rows.axis, dtype, descending=largest)
    first = rows.resized(count).shape
    values, places = called(builder, kernel, [value], [(first, dtype), (first, "int64")])
    return values, places


def _is_large_part(count: Any, length: Any) -> bool:
    if not all(isinstance(extent, int | tirx.IntImm) for extent in (count, length)):
        return False
    return int(count) * SORTED_PART >= int(length)
