"""The different elements of a tensor, or slices of it along an axis: ONNX's Unique, by sorting."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from tvm import relax, tirx
from tvm.script import tirx as T

from forge_pipeline.codegen.sorting.merge_sort import PLACE, place_at, sorting_code
from forge_pipeline.codegen.sorting.order import before
from forge_pipeline.codegen.sorting.rows import (
    Extents,
    Rows,
    attributes,
    called,
    extents_of,
    made_once,
    own,
    size,
    unravelled,
)
from forge_pipeline.codegen.tir import script


class Unique(NamedTuple):
    """What is known of the different elements; only the first ``count`` of ``first`` and ``counts`` are filled."""

    first: relax.Expr
    """Where each occurs first."""
    inverse: relax.Expr
    """Which of them each element is."""
    counts: relax.Expr
    """How often each occurs."""
    count: relax.Expr
    """How many there are, ()."""


@made_once
def unique_kernel(data: Extents, axis: int | None, dtype: str, *, ordered: bool) -> tirx.PrimFunc:
    """Return ``(data) -> (first, inverse, counts, count, scratch (2, elements))``.

    Elements are the slices along ``axis``, compared in lexicographic order, or single values where it is None.
    ``ordered``: by size, else as they first occur.
    """
    (shape,) = own(data)
    rows = Rows((size(shape),), 0)
    slices = None if axis is None else Rows(shape, axis)
    elements = rows.length if slices is None else slices.length
    width = size(()) if slices is None else slices.outer * slices.inner
    at = partial(place_at, Rows((elements,), 0), 0, 0)

    def index(place: Any, step: Any) -> tuple[Any, ...]:
        if slices is None:
            return unravelled(place, shape)
        return slices.at(slices.split(step)[0], place, slices.split(step)[1])

    @script.prim_func(s_tir=True, private=True)
    def unique(a: T.handle, b: T.handle, c: T.handle, d: T.handle, e: T.handle, f: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes("unique"))
        A = T.match_buffer(a, shape, dtype)
        F = T.match_buffer(b, (elements,), "int64")
        I = T.match_buffer(c, (elements,), "int64")  # noqa: E741
        N = T.match_buffer(d, (elements,), "int64")
        C = T.match_buffer(e, (), "int64")
        S = T.match_buffer(f, (2, elements), PLACE)

        @script.inline
        def precede(flag, o, j, left, right):  # type: ignore[no-untyped-def]
            step = T.sblock_alloc_buffer((1,), "int64", scope="local")
            flag[0] = T.int32(0)
            step[0] = T.int64(0)
            while step[0] < width:
                if before(
                    A[index(T.Cast("int64", left), step[0])],
                    A[index(T.Cast("int64", right), step[0])],
                    descending=False,
                ):
                    flag[0] = T.int32(1)
                    step[0] = width
                elif before(
                    A[index(T.Cast("int64", right), step[0])],
                    A[index(T.Cast("int64", left), step[0])],
                    descending=False,
                ):
                    step[0] = width
                else:
                    step[0] = step[0] + 1

        with T.sblock("all"):
            T.reads()
            T.writes()
            half = T.sblock_alloc_buffer((1,), "int64", scope="local")
            flag = T.sblock_alloc_buffer((1,), "int32", scope="local")
            groups = T.sblock_alloc_buffer((1,), "int64", scope="local")
            for i in T.serial(elements):
                S[at(0, i)] = T.Cast(PLACE, i)
            sorting_code(Rows((elements,), 0), precede)(S, 0, 0, elements, half)
            groups[0] = T.int64(0)
            for i in T.serial(elements):  # groups by size: which each element is in, and where each occurs first
                flag[0] = T.int32(1)
                if i > 0:
                    precede(flag, 0, 0, S[at(half[0], i - 1)], S[at(half[0], i)])
                if flag[0] == T.int32(1):
                    S[at(1 - half[0], groups[0])] = S[at(half[0], i)]
                    groups[0] = groups[0] + 1
                I[T.Cast("int64", S[at(half[0], i)])] = groups[0] - 1
            C[()] = groups[0]
            groups[0] = T.int64(0)
            for i in T.serial(elements):  # the half that was sorted now has the groups' final numbers
                if S[at(1 - half[0], I[i])] == T.Cast(PLACE, i):
                    S[at(half[0], I[i])] = T.Cast(PLACE, I[i] if ordered else groups[0])
                    F[T.Cast("int64", S[at(half[0], I[i])])] = i
                    N[T.Cast("int64", S[at(half[0], I[i])])] = T.int64(0)
                    groups[0] = groups[0] + 1
                I[i] = T.Cast("int64", S[at(half[0], I[i])])
                N[I[i]] = N[I[i]] + 1

    return unique


def unique(builder: Any, value: relax.Expr, elements: Any, *, axis: int | None, ordered: bool) -> Unique:
    """Find the different elements of ``value``, which has ``elements`` of them: values, or slices along ``axis``."""
    shape = extents_of(value)
    kernel = unique_kernel(shape, None if axis is None else axis % len(shape), str(value.ty.dtype), ordered=ordered)
    each = ((elements,), "int64")
    first, inverse, counts, count, _ = called(
        builder, kernel, [value], [each, each, each, ((), "int64"), ((2, elements), PLACE)]
    )
    return Unique(first, inverse, counts, count)
