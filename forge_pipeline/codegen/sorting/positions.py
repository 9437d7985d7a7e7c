"""Where a condition holds: flat places in row-major order, as NonZero and Compress want them.

How many there are is known when the kernel has run: results have room for all, and the count says how much is filled.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.script import tirx as T

from forge_pipeline.codegen.sorting.rows import (
    Extents,
    attributes,
    called,
    extents_of,
    made_once,
    own,
    size,
    unravelled,
)
from forge_pipeline.codegen.tir import script


@made_once
def positions_kernel(data: Extents, dtype: str) -> tirx.PrimFunc:
    """Return ``(data) -> (places (elements of data,), count ())``: where data is not zero; a NaN is not."""
    (shape,) = own(data)
    total = size(shape)

    def is_set(value: Any) -> Any:
        return value if dtype == "bool" else value != tirx.const(0, dtype)

    @script.prim_func(s_tir=True, private=True)
    def positions(a: T.handle, b: T.handle, c: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(attributes("positions"))
        A = T.match_buffer(a, shape, dtype)
        P = T.match_buffer(b, (total,), "int64")
        C = T.match_buffer(c, (), "int64")
        with T.sblock("all"):
            T.reads()
            T.writes()
            found = T.sblock_alloc_buffer((1,), "int64", scope="local")
            found[0] = T.int64(0)
            for i in T.serial(total):
                if is_set(A[unravelled(i, shape)]):
                    P[found[0]] = i
                    found[0] = found[0] + 1
            C[()] = found[0]

    return positions


def positions(builder: Any, value: relax.Expr, total: Any) -> tuple[relax.Expr, relax.Expr]:
    """Return the flat places where ``value`` is not zero, (``total``,), and how many there are, ().

    ``total`` is the number of elements of ``value``, as an extent.
    """
    kernel = positions_kernel(extents_of(value), str(value.ty.dtype))
    places, count = called(builder, kernel, [value], [((total,), "int64"), ((), "int64")])
    return places, count
