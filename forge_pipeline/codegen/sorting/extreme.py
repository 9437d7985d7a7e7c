"""The place of the largest or the smallest of each row: ONNX's ArgMax and ArgMin, with their choice among equals."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.script import tirx as T

from forge_pipeline.codegen.sorting.order import before, equal
from forge_pipeline.codegen.sorting.rows import Extents, Rows, attributes, called, extents_of, own


def extreme_kernel(data: Extents, axis: int, dtype: str, *, largest: bool, last: bool) -> tirx.PrimFunc:
    """Return ``(data) -> (places)``, whose extent along the axis is 1."""
    (shape,) = own(data)
    rows = Rows(shape, axis)
    single = rows.resized(tirx.const(1, "int64"))

    def is_better(value: Any, best: Any) -> Any:
        better = before(value, best, descending=largest)
        return tirx.any(better, equal(value, best)) if last else better

    @T.prim_func(s_tir=True, private=True)  # type: ignore[untyped-decorator]
    def extreme(a: T.handle, b: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes("arg_max" if largest else "arg_min"))
        A = T.match_buffer(a, rows.shape, dtype)
        P = T.match_buffer(b, single.shape, "int64")
        for row in T.parallel(rows.outer * rows.inner):
            with T.sblock("row"):
                o = T.axis.opaque(rows.outer, rows.split(row)[0])
                j = T.axis.opaque(rows.inner, rows.split(row)[1])
                T.reads()
                T.writes()
                best = T.sblock_alloc_buffer((1,), dtype, scope="local")
                place = T.sblock_alloc_buffer((1,), "int64", scope="local")
                place[0] = T.int64(0)
                if rows.length > 0:  # a row of nothing has no extreme
                    best[0] = A[rows.at(o, T.int64(0), j)]
                for i in T.serial(rows.length - 1):
                    if is_better(A[rows.at(o, i + 1, j)], best[0]):
                        best[0] = A[rows.at(o, i + 1, j)]
                        place[0] = i + 1
                P[single.at(o, T.int64(0), j)] = place[0]

    return extreme


def extreme(builder: Any, value: relax.Expr, *, axis: int, largest: bool, last: bool = False) -> relax.Expr:
    """Return the place in int64 of each row's extreme, kept as an axis of 1; of equal ones the first or ``last``."""
    shape = extents_of(value)
    rows = Rows(shape, axis % len(shape))
    kernel = extreme_kernel(shape, rows.axis, str(value.ty.dtype), largest=largest, last=last)
    (places,) = called(builder, kernel, [value], [(rows.resized(tirx.const(1, "int64")).shape, "int64")])
    return places
