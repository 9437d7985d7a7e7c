"""The kernel of an RNN (`steps` has what it takes and gives)."""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

from forge_pipeline.codegen.onnx_import.recurrent.form import TILE, Form
from forge_pipeline.codegen.onnx_import.recurrent.functions import Function
from forge_pipeline.codegen.onnx_import.recurrent.steps import ATTRIBUTES, float_products, skeleton
from forge_pipeline.codegen.tir import script


def rnn_kernel(form: Form, functions: tuple[Function, ...]) -> Any:
    """Return ``(first, last, recurrence, lengths, h0) -> (y, h)``."""
    (activation,) = functions
    directions, hidden, dtype, width = form.directions, form.hidden, form.dtype, form.width
    (sequences, states), sums = skeleton(form), float_products(form, 1)

    @script.prim_func(s_tir=True, private=True)
    def rnn(  # type: ignore[no-untyped-def]
        a: T.handle, q: T.handle, b: T.handle, m: T.handle, c: T.handle, d: T.handle, e: T.handle,
    ):  # fmt: skip
        T.func_attr(ATTRIBUTES)
        steps, batch = T.int64(), T.int64()
        P = T.match_buffer(a, (steps, batch, hidden), dtype)
        Q = T.match_buffer(q, (steps, batch, hidden), dtype)
        R = T.match_buffer(b, (directions, form.blocks, form.parts(1), hidden, form.part(1)), dtype)
        L = T.match_buffer(m, (form.extent(batch),), "int32")
        H0 = T.match_buffer(c, (directions, batch, hidden), dtype)
        Y = T.match_buffer(d, (steps, directions, batch, hidden), dtype)
        H = T.match_buffer(e, (directions, batch, hidden), dtype)

        @script.inline
        def begin(w, n, j):  # type: ignore[no-untyped-def]
            H[w, n, j] = form.started(H0[w, n, j], L, n, steps)

        @script.inline
        def step(w, tile, time):  # type: ignore[no-untyped-def]
            S = T.sblock_alloc_buffer((TILE, hidden), dtype, scope="local")
            G = T.sblock_alloc_buffer((TILE, width), dtype, scope="local")
            four = T.sblock_alloc_buffer((form.sums(1, 4),), dtype, scope="local")
            three = T.sblock_alloc_buffer((form.sums(1, 3),), dtype, scope="local")
            two = T.sblock_alloc_buffer((form.sums(1, 2),), dtype, scope="local")
            one = T.sblock_alloc_buffer((form.sums(1, 1),), dtype, scope="local")

            @script.inline
            def cells(count, w, row, n, t, block):  # type: ignore[no-untyped-def]
                for j in form.some(count):
                    G[row, j] = G[row, j] + form.of(w, P[t, n, block * width + j], Q[t, n, block * width + j])
                for j in T.vectorized(width):
                    G[row, j] = activation(w, G[row, j])
                for j in form.some(count):
                    H[w, n, block * width + j] = G[row, j]
                for j in form.some(count):
                    Y[t, w, n, block * width + j] = G[row, j]

            for row in T.serial(form.rows(tile, batch)):
                for j in T.serial(hidden):
                    S[row, j] = H[w, tile * TILE + row, j]
            for block in T.serial(form.blocks):
                sums(S, G, four, three, two, one, R, w, form.rows(tile, batch), block)
                states(steps, batch, L, w, tile, time, block, cells)

        sequences(steps, batch, L, Y, begin, step)

    return rnn
