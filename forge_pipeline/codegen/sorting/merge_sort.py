"""Stable sorting by merging, bottom up: in each pass, sorted runs are merged to runs of twice the length.

Knuth, The Art of Computer Programming 3, 5.2.4. What is sorted are places in a row, so that keys may be anything.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm import relax, tirx
from tvm.script import tirx as T

from forge_pipeline.codegen.sorting.order import before
from forge_pipeline.codegen.sorting.rows import (
    Extents,
    Rows,
    attributes,
    called,
    extents_of,
    made_once,
    own,
    unravelled,
)
from forge_pipeline.codegen.tir import script

RUN = 8
"""Places that are sorted by insertion before anything is merged."""

PLACE = "int32"
"""The dtype of places while they are sorted: rows have fewer than 2^31 elements."""


def scratch(rows: Rows) -> tuple[Any, ...]:
    """Return the extents of what sorting takes beside its result: two halves of places for each row."""
    return (*rows.before, *rows.after, 2, rows.length)


def place_at(rows: Rows, outer: Any, inner: Any, half: Any, index: Any) -> tuple[Any, ...]:
    """Return where one place of a row is in the scratch memory."""
    return (*unravelled(outer, rows.before), *unravelled(inner, rows.after), half, index)


def sorting_code(rows: Rows, precede: Any) -> Any:
    """Return code ``sort(S, o, j, count, half)``: sorts ``count`` places that lie in S's first half.

    ``half[0]`` then says in which half of S they are. ``precede(flag, o, j, left, right)`` is code that sets
    ``flag[0]`` to 1 where place ``left`` of the row strictly precedes ``right``, else to 0.
    """
    at = partial(place_at, rows)

    @script.inline
    def insert(S, o, j, low, place, flag, moved, spot):  # type: ignore[no-untyped-def]
        moved[0] = S[at(o, j, 0, place)]
        spot[0] = place
        flag[0] = T.int32(1)
        while flag[0] == T.int32(1):
            flag[0] = T.int32(0)
            if spot[0] > low:
                precede(flag, o, j, moved[0], S[at(o, j, 0, spot[0] - 1)])
                if flag[0] == T.int32(1):
                    S[at(o, j, 0, spot[0])] = S[at(o, j, 0, spot[0] - 1)]
                    spot[0] = spot[0] - 1
        S[at(o, j, 0, spot[0])] = moved[0]

    @script.inline
    def merge(S, o, j, half, low, middle, high, flag, heads):  # type: ignore[no-untyped-def]
        heads[0] = low
        heads[1] = middle
        for filled in T.serial(high - low):
            flag[0] = T.int32(1)
            if heads[0] < middle:
                flag[0] = T.int32(0)
                if heads[1] < high:
                    precede(flag, o, j, S[at(o, j, half, heads[1])], S[at(o, j, half, heads[0])])
            if flag[0] == T.int32(1):
                S[at(o, j, 1 - half, low + filled)] = S[at(o, j, half, heads[1])]
                heads[1] = heads[1] + 1
            else:
                S[at(o, j, 1 - half, low + filled)] = S[at(o, j, half, heads[0])]
                heads[0] = heads[0] + 1

    @script.inline
    def sort(S, o, j, count, half):  # type: ignore[no-untyped-def]
        flag = T.sblock_alloc_buffer((1,), "int32", scope="local")
        moved = T.sblock_alloc_buffer((1,), PLACE, scope="local")
        spot = T.sblock_alloc_buffer((1,), "int64", scope="local")
        heads = T.sblock_alloc_buffer((2,), "int64", scope="local")
        width = T.sblock_alloc_buffer((1,), "int64", scope="local")
        for run in T.serial((count + RUN - 1) // RUN):
            for following in T.serial(T.min(T.int64(RUN), count - run * RUN)):
                insert(S, o, j, run * RUN, run * RUN + following, flag, moved, spot)
        half[0] = T.int64(0)
        width[0] = T.int64(RUN)
        while width[0] < count:
            for pair in T.serial((count + 2 * width[0] - 1) // (2 * width[0])):
                merge(
                    S, o, j, half[0],
                    pair * 2 * width[0],
                    T.min(pair * 2 * width[0] + width[0], count),
                    T.min(pair * 2 * width[0] + 2 * width[0], count),
                    flag, heads,
                )  # fmt: skip
            half[0] = 1 - half[0]
            width[0] = width[0] * 2

    return sort


@made_once
def sort_kernel(data: Extents, result: Any, axis: int, dtype: str, *, descending: bool) -> tirx.PrimFunc:
    """Return ``(data) -> (values, places, scratch)``: the first ``result`` of each row in stable order."""
    shape, (kept,) = own(data, (result,))
    rows = Rows(shape, axis)
    first, at = rows.resized(kept), partial(place_at, rows)

    @script.prim_func(s_tir=True, private=True)
    def sort_rows(a: T.handle, b: T.handle, c: T.handle, d: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes("sort"))
        A = T.match_buffer(a, rows.shape, dtype)
        V = T.match_buffer(b, first.shape, dtype)
        P = T.match_buffer(c, first.shape, "int64")
        S = T.match_buffer(d, scratch(rows), PLACE)

        @script.inline
        def precede(flag, o, j, left, right):  # type: ignore[no-untyped-def]
            flag[0] = T.Cast(
                "int32",
                before(
                    A[rows.at(o, T.Cast("int64", left), j)],
                    A[rows.at(o, T.Cast("int64", right), j)],
                    descending=descending,
                ),
            )

        for row in T.parallel(rows.outer * rows.inner):
            with T.sblock("row"):
                o = T.axis.opaque(rows.outer, rows.split(row)[0])
                j = T.axis.opaque(rows.inner, rows.split(row)[1])
                T.reads()
                T.writes()
                half = T.sblock_alloc_buffer((1,), "int64", scope="local")
                for i in T.serial(rows.length):
                    S[at(o, j, 0, i)] = T.Cast(PLACE, i)
                sorting_code(rows, precede)(S, o, j, rows.length, half)
                for i in T.serial(kept):
                    P[first.at(o, i, j)] = T.Cast("int64", S[at(o, j, half[0], i)])
                    V[first.at(o, i, j)] = A[rows.at(o, T.Cast("int64", S[at(o, j, half[0], i)]), j)]

    return sort_rows


def sort(
    builder: Any, value: relax.Expr, *, axis: int, descending: bool, result: Any = None
) -> tuple[relax.Expr, relax.Expr]:
    """Return the first ``result`` values (all, by default) of each row in stable order, and their places in int64."""
    shape, dtype = extents_of(value), str(value.ty.dtype)
    rows = Rows(shape, axis % len(shape))
    kept = rows.length if result is None else result
    kernel = sort_kernel(shape, kept, rows.axis, dtype, descending=descending)
    first = rows.resized(kept).shape
    values, places, _ = called(builder, kernel, [value], [(first, dtype), (first, "int64"), (scratch(rows), PLACE)])
    return values, places
