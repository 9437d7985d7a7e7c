"""Running sums and products along an axis: ONNX's CumSum and CumProd. Rows that lie side by side go together."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.script import tirx as T

from forge_pipeline.codegen.sorting.rows import TOGETHER, Extents, Rows, attributes, called, extents_of, made_once, own
from forge_pipeline.codegen.tir import script


@made_once
def cumulative_kernel(
    data: Extents, axis: int, dtype: str, *, product: bool, exclusive: bool, reverse: bool
) -> tirx.PrimFunc:
    """Return ``(data) -> (result)`` of one shape; an exclusive sum begins with 0, an exclusive product with 1."""
    (shape,) = own(data)
    rows = Rows(shape, axis)
    start = tirx.const(int(product), dtype)

    def joined(left: Any, right: Any) -> Any:
        return left * right if product else left + right

    def moment(step: Any) -> Any:
        return rows.length - 1 - step if reverse else step

    @script.prim_func(s_tir=True, private=True)
    def cumulative(a: T.handle, b: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes("cumulative"))
        A = T.match_buffer(a, rows.shape, dtype)
        B = T.match_buffer(b, rows.shape, dtype)
        for group in T.parallel(rows.groups):
            with T.sblock("rows"):
                o = T.axis.opaque(rows.outer, rows.first(group)[0])
                j = T.axis.opaque(rows.inner, rows.first(group)[1])
                T.reads()
                T.writes()
                total = T.sblock_alloc_buffer((TOGETHER,), dtype, scope="local")
                if rows.are_wide:
                    for lane in T.vectorized(TOGETHER):
                        total[lane] = start
                    for step in T.serial(rows.length):
                        if exclusive:
                            for lane in T.vectorized(TOGETHER):
                                B[rows.at(o, moment(step), j + lane)] = total[lane]
                        for lane in T.vectorized(TOGETHER):
                            total[lane] = joined(total[lane], A[rows.at(o, moment(step), j + lane)])
                        if not exclusive:
                            for lane in T.vectorized(TOGETHER):
                                B[rows.at(o, moment(step), j + lane)] = total[lane]
                else:
                    total[0] = start
                    for step in T.serial(rows.length):
                        if exclusive:
                            B[rows.at(o, moment(step), j)] = total[0]
                        total[0] = joined(total[0], A[rows.at(o, moment(step), j)])
                        if not exclusive:
                            B[rows.at(o, moment(step), j)] = total[0]

    return cumulative


def cumulative(
    builder: Any, value: relax.Expr, *, axis: int, product: bool = False, exclusive: bool = False, reverse: bool = False
) -> relax.Expr:
    """Return the running sums of each row along ``axis``, or the products, from its end where ``reverse``."""
    shape, dtype = extents_of(value), str(value.ty.dtype)
    kernel = cumulative_kernel(shape, axis % len(shape), dtype, product=product, exclusive=exclusive, reverse=reverse)
    (result,) = called(builder, kernel, [value], [(shape, dtype)])
    return result
