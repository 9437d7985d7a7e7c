"""The kernels of a GRU (`steps` has what they take and give)."""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

from forge_pipeline.codegen.onnx_import.recurrent.form import TILE, Form
from forge_pipeline.codegen.onnx_import.recurrent.functions import Function
from forge_pipeline.codegen.onnx_import.recurrent.steps import ATTRIBUTES, float_products, skeleton
from forge_pipeline.codegen.tir import script


def gru_kernel(form: Form, functions: tuple[Function, ...]) -> Any:
    """Return ``(first, last, recurrence, lengths, bias (directions, hidden), h0) -> (y, h)`` of a GRU whose reset gate
    multiplies the state's product, after its bias."""
    gate, candidate = functions
    directions, hidden, dtype, width = form.directions, form.hidden, form.dtype, form.width
    (sequences, states), sums = skeleton(form), float_products(form, 3)

    @script.prim_func(s_tir=True, private=True)
    def gru(  # type: ignore[no-untyped-def]
        a: T.handle, q: T.handle, b: T.handle, m: T.handle, p: T.handle, c: T.handle, d: T.handle, e: T.handle,
    ):  # fmt: skip
        T.func_attr(ATTRIBUTES)
        steps, batch = T.int64(), T.int64()
        P = T.match_buffer(a, (steps, batch, 3 * hidden), dtype)
        Q = T.match_buffer(q, (steps, batch, 3 * hidden), dtype)
        R = T.match_buffer(b, (directions, form.blocks, form.parts(3), hidden, form.part(3)), dtype)
        L = T.match_buffer(m, (form.extent(batch),), "int32")
        B = T.match_buffer(p, (directions, hidden), dtype)
        H0 = T.match_buffer(c, (directions, batch, hidden), dtype)
        Y = T.match_buffer(d, (steps, directions, batch, hidden), dtype)
        H = T.match_buffer(e, (directions, batch, hidden), dtype)

        @script.inline
        def begin(w, n, j):  # type: ignore[no-untyped-def]
            H[w, n, j] = form.started(H0[w, n, j], L, n, steps)

        @script.inline
        def step(w, tile, time):  # type: ignore[no-untyped-def]
            S = T.sblock_alloc_buffer((TILE, hidden), dtype, scope="local")
            G = T.sblock_alloc_buffer((TILE, 3 * width), dtype, scope="local")
            four = T.sblock_alloc_buffer((form.sums(3, 4),), dtype, scope="local")
            three = T.sblock_alloc_buffer((form.sums(3, 3),), dtype, scope="local")
            two = T.sblock_alloc_buffer((form.sums(3, 2),), dtype, scope="local")
            one = T.sblock_alloc_buffer((form.sums(3, 1),), dtype, scope="local")
            kept = T.sblock_alloc_buffer((2 * width,), dtype, scope="local")

            @script.inline
            def cells(count, w, row, n, t, block):  # type: ignore[no-untyped-def]
                for part in T.unroll(2):
                    for j in form.some(count):
                        G[row, part * width + j] = G[row, part * width + j] + form.of(
                            w, P[t, n, part * hidden + block * width + j], Q[t, n, part * hidden + block * width + j]
                        )
                for j in form.some(count):
                    G[row, 2 * width + j] = G[row, 2 * width + j] + B[w, block * width + j]
                for j in form.some(count):
                    kept[j] = form.of(
                        w, P[t, n, 2 * hidden + block * width + j], Q[t, n, 2 * hidden + block * width + j]
                    )
                for j in form.some(count):
                    kept[width + j] = H[w, n, block * width + j]
                for j in T.vectorized(width):
                    kept[j] = candidate(w, kept[j] + gate(w, G[row, width + j]) * G[row, 2 * width + j])
                for j in T.vectorized(width):
                    kept[j] = kept[j] + gate(w, G[row, j]) * (kept[width + j] - kept[j])
                for j in form.some(count):
                    H[w, n, block * width + j] = kept[j]
                for j in form.some(count):
                    Y[t, w, n, block * width + j] = kept[j]

            for row in T.serial(form.rows(tile, batch)):
                for j in T.serial(hidden):
                    S[row, j] = H[w, tile * TILE + row, j]
            for block in T.serial(form.blocks):
                sums(S, G, four, three, two, one, R, w, form.rows(tile, batch), block)
                states(steps, batch, L, w, tile, time, block, cells)

        sequences(steps, batch, L, Y, begin, step)

    return gru


def late_gru_kernel(form: Form, functions: tuple[Function, ...]) -> Any:
    """Return ``(first, last, recurrence, candidates, lengths, h0) -> (y, h)`` of a GRU whose reset gate multiplies the
    state, of which the candidate's product is made: R of two gates first, and that of the candidate."""
    gate, candidate = functions
    directions, hidden, dtype, width = form.directions, form.hidden, form.dtype, form.width
    (sequences, states), sums, more = skeleton(form), float_products(form, 2), float_products(form, 1)

    @script.prim_func(s_tir=True, private=True)
    def gru(  # type: ignore[no-untyped-def]
        a: T.handle, q: T.handle, b: T.handle, p: T.handle, m: T.handle, c: T.handle, d: T.handle, e: T.handle,
    ):  # fmt: skip
        T.func_attr(ATTRIBUTES)
        steps, batch = T.int64(), T.int64()
        P = T.match_buffer(a, (steps, batch, 3 * hidden), dtype)
        Q = T.match_buffer(q, (steps, batch, 3 * hidden), dtype)
        R = T.match_buffer(b, (directions, form.blocks, form.parts(2), hidden, form.part(2)), dtype)
        N = T.match_buffer(p, (directions, form.blocks, form.parts(1), hidden, form.part(1)), dtype)
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
            K = T.sblock_alloc_buffer((TILE, form.blocks * width), dtype, scope="local")
            Z = T.sblock_alloc_buffer((TILE, form.blocks * width), dtype, scope="local")
            G = T.sblock_alloc_buffer((TILE, 2 * width), dtype, scope="local")
            four = T.sblock_alloc_buffer((max(form.sums(2, 4), form.sums(1, 4)),), dtype, scope="local")
            three = T.sblock_alloc_buffer((max(form.sums(2, 3), form.sums(1, 3)),), dtype, scope="local")
            two = T.sblock_alloc_buffer((max(form.sums(2, 2), form.sums(1, 2)),), dtype, scope="local")
            one = T.sblock_alloc_buffer((max(form.sums(2, 1), form.sums(1, 1)),), dtype, scope="local")

            @script.inline
            def gates(count, w, row, n, t, block):  # type: ignore[no-untyped-def]
                for part in T.unroll(2):
                    for j in form.some(count):
                        G[row, part * width + j] = G[row, part * width + j] + form.of(
                            w, P[t, n, part * hidden + block * width + j], Q[t, n, part * hidden + block * width + j]
                        )
                for j in T.vectorized(width):
                    Z[row, block * width + j] = gate(w, G[row, j])
                for j in T.vectorized(width):
                    G[row, j] = gate(w, G[row, width + j])
                for j in form.some(count):
                    K[row, block * width + j] = G[row, j] * H[w, n, block * width + j]

            @script.inline
            def cells(count, w, row, n, t, block):  # type: ignore[no-untyped-def]
                for j in form.some(count):
                    G[row, j] = G[row, j] + form.of(
                        w, P[t, n, 2 * hidden + block * width + j], Q[t, n, 2 * hidden + block * width + j]
                    )
                for j in form.some(count):
                    G[row, width + j] = H[w, n, block * width + j]
                for j in T.vectorized(width):
                    G[row, j] = candidate(w, G[row, j])
                for j in T.vectorized(width):
                    G[row, j] = G[row, j] + Z[row, block * width + j] * (G[row, width + j] - G[row, j])
                for j in form.some(count):
                    H[w, n, block * width + j] = G[row, j]
                for j in form.some(count):
                    Y[t, w, n, block * width + j] = G[row, j]

            for row in T.serial(form.rows(tile, batch)):
                for j in T.serial(hidden):
                    S[row, j] = H[w, tile * TILE + row, j]
            for block in T.serial(form.blocks):
                sums(S, G, four, three, two, one, R, w, form.rows(tile, batch), block)
                states(steps, batch, L, w, tile, time, block, gates)
            for block in T.serial(form.blocks):
                more(K, G, four, three, two, one, N, w, form.rows(tile, batch), block)
                states(steps, batch, L, w, tile, time, block, cells)

        sequences(steps, batch, L, Y, begin, step)

    return gru
