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
from forge_pipeline.codegen.sorting.rows import Extents, Rows, attributes, called, extents_of, made_once, own
from forge_pipeline.codegen.tir import script

LOOKED_AT = 16
"""Elements that are compared together with the worst that is kept; few of a long row are better."""

SORTED_PART = 4
"""Rows of which one in so many elements, or more, are wanted are sorted whole, which takes fewer steps for each."""


@made_once
def heap_kernel(data: Extents, result: Any, axis: int, dtype: str, *, descending: bool) -> tirx.PrimFunc:
    """Return ``(data) -> (values, places)``: the first ``result`` of each row, in order."""
    shape, (kept,) = own(data, (result,))
    rows = Rows(shape, axis)
    at = rows.resized(kept).at

    def follows(left: Any, left_place: Any, right: Any, right_place: Any) -> Any:
        """Return whether the left one comes after the right one."""
        later = before(right, left, descending=descending)
        return tirx.any(later, tirx.all(equal(left, right), left_place > right_place))

    def either(left: Any, right: Any) -> Any:
        return left | right

    @script.prim_func(s_tir=True, private=True)
    def top_k_rows(a: T.handle, b: T.handle, c: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes("top_k"))
        A = T.match_buffer(a, rows.shape, dtype)
        V = T.match_buffer(b, rows.resized(kept).shape, dtype)
        P = T.match_buffer(c, rows.resized(kept).shape, "int64")

        @script.inline
        def sink(o, j, count, node, child, value, place):  # type: ignore[no-untyped-def]
            """Put a value into the first ``count``, at ``node`` or below: what follows it goes up."""
            child[0] = 2 * node[0] + 1
            while child[0] < count:
                if T.if_then_else(
                    child[0] + 1 < count,
                    follows(
                        V[at(o, child[0] + 1, j)],
                        P[at(o, child[0] + 1, j)],
                        V[at(o, child[0], j)],
                        P[at(o, child[0], j)],
                    ),
                    False,
                ):
                    child[0] = child[0] + 1
                if follows(V[at(o, child[0], j)], P[at(o, child[0], j)], value[0], place[0]):
                    V[at(o, node[0], j)] = V[at(o, child[0], j)]
                    P[at(o, node[0], j)] = P[at(o, child[0], j)]
                    node[0] = child[0]
                    child[0] = 2 * child[0] + 1
                else:
                    child[0] = count
            V[at(o, node[0], j)] = value[0]
            P[at(o, node[0], j)] = place[0]

        @script.inline
        def offer(o, j, i, node, child, value, place):  # type: ignore[no-untyped-def]
            if before(A[rows.at(o, i, j)], V[at(o, T.int64(0), j)], descending=descending):
                value[0] = A[rows.at(o, i, j)]
                place[0] = i
                node[0] = T.int64(0)
                sink(o, j, kept, node, child, value, place)

        for row in T.parallel(rows.outer * rows.inner):
            with T.sblock("row"):
                o = T.axis.opaque(rows.outer, rows.split(row)[0])
                j = T.axis.opaque(rows.inner, rows.split(row)[1])
                T.reads()
                T.writes()
                node = T.sblock_alloc_buffer((1,), "int64", scope="local")
                child = T.sblock_alloc_buffer((1,), "int64", scope="local")
                value = T.sblock_alloc_buffer((1,), dtype, scope="local")
                place = T.sblock_alloc_buffer((1,), "int64", scope="local")
                wanted = T.sblock_alloc_buffer((LOOKED_AT,), "int32", scope="local")
                for i in T.serial(kept):
                    V[at(o, i, j)] = A[rows.at(o, i, j)]
                    P[at(o, i, j)] = T.Cast("int64", i)
                for i in T.serial(kept // 2):
                    node[0] = kept // 2 - 1 - i
                    value[0] = V[at(o, node[0], j)]
                    place[0] = P[at(o, node[0], j)]
                    sink(o, j, kept, node, child, value, place)
                if kept > 0:
                    for block in T.serial((rows.length - kept) // LOOKED_AT):
                        for lane in T.vectorized(LOOKED_AT):
                            wanted[lane] = T.Cast(
                                "int32",
                                before(
                                    A[rows.at(o, kept + block * LOOKED_AT + lane, j)],
                                    V[at(o, T.int64(0), j)],
                                    descending=descending,
                                ),
                            )
                        if script.over_lanes(wanted, LOOKED_AT, either) != 0:
                            for lane in T.serial(LOOKED_AT):
                                offer(o, j, kept + block * LOOKED_AT + lane, node, child, value, place)
                    for i in T.serial((rows.length - kept) % LOOKED_AT):
                        offer(o, j, kept + (rows.length - kept) // LOOKED_AT * LOOKED_AT + i, node, child, value, place)
                for i in T.serial(kept):
                    value[0] = V[at(o, kept - 1 - i, j)]
                    place[0] = P[at(o, kept - 1 - i, j)]
                    V[at(o, kept - 1 - i, j)] = V[at(o, T.int64(0), j)]
                    P[at(o, kept - 1 - i, j)] = P[at(o, T.int64(0), j)]
                    node[0] = T.int64(0)
                    if i < kept - 1:
                        sink(o, j, kept - 1 - i, node, child, value, place)

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
