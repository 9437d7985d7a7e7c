"""The kernel of an LSTM (`steps` has what it takes and gives)."""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

from forge_pipeline.codegen.onnx_import.recurrent.form import TILE, Form
from forge_pipeline.codegen.onnx_import.recurrent.functions import Function
from forge_pipeline.codegen.onnx_import.recurrent.steps import ATTRIBUTES, float_products, skeleton
from forge_pipeline.codegen.tir import script


def lstm_kernel(form: Form, functions: tuple[Function, ...]) -> Any:
    """Return ``(first, last, recurrence, lengths, peepholes, h0, c0) -> (y, h, c)``.

    ``peepholes`` (directions, 3, hidden): those of i, o and f.
    """
    directions, hidden, dtype, width = form.directions, form.hidden, form.dtype, form.width
    (sequences, states), sums = skeleton(form), float_products(form, 4)
    cells_of = lstm_cells(form, functions)

    @script.prim_func(s_tir=True, private=True)
    def lstm(  # type: ignore[no-untyped-def]
        a: T.handle, q: T.handle, b: T.handle, m: T.handle, p: T.handle, c: T.handle, d: T.handle, e: T.handle,
        f: T.handle, g: T.handle,
    ):  # fmt: skip
        T.func_attr(ATTRIBUTES)
        steps, batch = T.int64(), T.int64()
        P = T.match_buffer(a, (steps, batch, 4 * hidden), dtype)
        Q = T.match_buffer(q, (steps, batch, 4 * hidden), dtype)
        R = T.match_buffer(b, (directions, form.blocks, form.parts(4), hidden, form.part(4)), dtype)
        L = T.match_buffer(m, (form.extent(batch),), "int32")
        W = T.match_buffer(p, (directions, 3, hidden), dtype)
        H0 = T.match_buffer(c, (directions, batch, hidden), dtype)
        C0 = T.match_buffer(d, (directions, batch, hidden), dtype)
        Y = T.match_buffer(e, (steps, directions, batch, hidden), dtype)
        H = T.match_buffer(f, (directions, batch, hidden), dtype)
        C = T.match_buffer(g, (directions, batch, hidden), dtype)

        @script.inline
        def begin(w, n, j):  # type: ignore[no-untyped-def]
            H[w, n, j] = form.started(H0[w, n, j], L, n, steps)
            C[w, n, j] = form.started(C0[w, n, j], L, n, steps)

        @script.inline
        def step(w, tile, time):  # type: ignore[no-untyped-def]
            S = T.sblock_alloc_buffer((TILE, hidden), dtype, scope="local")
            G = T.sblock_alloc_buffer((TILE, 4 * width), dtype, scope="local")
            four = T.sblock_alloc_buffer((form.sums(4, 4),), dtype, scope="local")
            three = T.sblock_alloc_buffer((form.sums(4, 3),), dtype, scope="local")
            two = T.sblock_alloc_buffer((form.sums(4, 2),), dtype, scope="local")
            one = T.sblock_alloc_buffer((form.sums(4, 1),), dtype, scope="local")
            kept = T.sblock_alloc_buffer((4 * width,), dtype, scope="local")

            @script.inline
            def cells(count, w, row, n, t, block):  # type: ignore[no-untyped-def]
                cells_of(count, G, kept, P, Q, W, H, C, Y, w, row, n, t, block)

            for row in T.serial(form.rows(tile, batch)):
                for j in T.serial(hidden):
                    S[row, j] = H[w, tile * TILE + row, j]
            for block in T.serial(form.blocks):
                sums(S, G, four, three, two, one, R, w, form.rows(tile, batch), block)
                states(steps, batch, L, w, tile, time, block, cells)

        sequences(steps, batch, L, Y, begin, step)

    return lstm


def lstm_cells(form: Form, functions: tuple[Function, ...]) -> Any:
    """Return what a step does to ``count`` states of a block, whose products are ``G``; ``kept`` has room for four
    times as many states: their cell, their peepholes of i, of f and of o."""
    gate, candidate, output = functions
    hidden, width, dtype = form.hidden, form.width, form.dtype

    def forgotten(w: Any, forget: Any, take: Any) -> Any:
        return T.FloatImm(dtype, 1.0) - gate(w, take) if form.is_coupled else gate(w, forget)

    @script.inline
    def cells(count, G, kept, P, Q, W, H, C, Y, w, row, n, t, block):  # type: ignore[no-untyped-def]
        for part in T.unroll(4):
            for j in form.some(count):
                G[row, part * width + j] = G[row, part * width + j] + form.of(
                    w, P[t, n, part * hidden + block * width + j], Q[t, n, part * hidden + block * width + j]
                )
        for j in form.some(count):
            kept[j] = C[w, n, block * width + j]
        for j in form.some(count):
            kept[width + j] = W[w, 0, block * width + j]
        for j in form.some(count):
            kept[2 * width + j] = W[w, 2, block * width + j]
        for j in form.some(count):
            kept[3 * width + j] = W[w, 1, block * width + j]
        for j in T.vectorized(width):
            G[row, j] = G[row, j] + kept[width + j] * kept[j]
        for j in T.vectorized(width):
            G[row, 2 * width + j] = forgotten(w, G[row, 2 * width + j] + kept[2 * width + j] * kept[j], G[row, j])
        for j in T.vectorized(width):
            kept[j] = G[row, 2 * width + j] * kept[j] + gate(w, G[row, j]) * candidate(w, G[row, 3 * width + j])
        for j in T.vectorized(width):
            G[row, j] = gate(w, G[row, width + j] + kept[3 * width + j] * kept[j]) * output(w, kept[j])
        for j in form.some(count):
            C[w, n, block * width + j] = kept[j]
        for j in form.some(count):
            H[w, n, block * width + j] = G[row, j]
        for j in form.some(count):
            Y[t, w, n, block * width + j] = G[row, j]

    return cells
