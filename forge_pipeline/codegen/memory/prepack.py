"""What is computed once, when a library is loaded: weights in the form that kernels read, from the form that is stored.

Winograd's weights are up to four times as many as the convolution's, and halves are widened: the file holds the small
form. A kernel whose function has the attribute PREPARES, and whose operands are all constants, is moved from `main`
into a function `prepare` of the library, whose results `main` takes after its inputs and weights.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from forge_pipeline.codegen.tir import script

PREPARES = "forge.prepares"
"""The attribute of kernels that compute on weights alone."""

NAME = "prepare"
CHUNK = 4096
"""Values that a thread widens at a time."""


def widening_kernel() -> tirx.PrimFunc:
    """Return ``(halves (n,), floats (n,))``, exact for every half, with integer arithmetic that any CPU has in vectors.

    A half's bits, moved to where a float32 has its own, are the number times 2^-112; infinity and NaN are told apart.
    """

    @script.prim_func(s_tir=True, private=True)
    def widen(a: T.handle, b: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        size = T.int64()
        A = T.match_buffer(a, (size,), "uint16")
        B = T.match_buffer(b, (size,), "float32")
        for chunk in T.parallel((size + CHUNK - 1) // CHUNK):
            for i in T.serial(T.min(T.int64(CHUNK), size - chunk * CHUNK)):
                with T.sblock("widen"):
                    j = T.axis.opaque(size, chunk * CHUNK + i)
                    T.reads(A[j])
                    T.writes(B[j])
                    B[j] = _widened(A[j])

    return widen


def _widened(half: Any) -> Any:
    def number(value: int) -> Any:
        return tirx.const(value, "uint32")

    bits = half.astype("uint32")
    sign = (bits & number(0x8000)) << number(16)
    finite = tirx.reinterpret("float32", (bits & number(0x7FFF)) << number(13)) * tirx.const(2.0**112, "float32")
    special = tirx.reinterpret("float32", ((bits & number(0x3FF)) << number(13)) | number(0x7F800000))
    value = tirx.Select((bits & number(0x7C00)) == number(0x7C00), special, finite)
    return tirx.reinterpret("float32", tirx.reinterpret("uint32", value) | sign)
