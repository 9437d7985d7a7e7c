"""Kernels for the steps of recurrent layers: one loop over time, so any number of steps is one kernel.

Each takes ``product``, X W^T + bias of all steps (steps, batch, gates * hidden), and the recurrence matrix R^T in
panels (gates * hidden / width, hidden, width), so that it is read in order, and gives the hidden state of every step
and the final state. The state lives in the result for the final one. Gate order and equations: ONNX operator
reference, LSTM-14, GRU-14, RNN-14.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Function = Callable[[Any], Any]
ATTRIBUTES = {"tirx.noalias": True, "tirx.is_scheduled": True}
WIDEST = 32
"""Sums side by side: four vectors of AVX2, as many as hide the latency of the additions."""

SPAN = 16
"""States at a time, whose gates are evaluated together."""


def panel_width(hidden: int) -> int:
    """Return the largest power of two up to WIDEST that divides ``hidden``: no tail, and a few registers at most."""
    return next(width for width in (WIDEST, 16, 8, 4, 2, 1) if hidden % width == 0)


def rnn_kernel(hidden: int, dtype: str, functions: tuple[Function, ...], is_reversed: bool) -> Any:
    """Return ``(product, recurrence, h0) -> (y, h)``."""
    from tvm.script import tirx as T

    (activation,) = functions
    width, span = panel_width(hidden), min(panel_width(hidden), SPAN)

    @T.prim_func(s_tir=True, private=True)  # type: ignore[untyped-decorator]
    def rnn(a: T.handle, b: T.handle, c: T.handle, d: T.handle, e: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(ATTRIBUTES)
        steps, batch = T.int64(), T.int64()
        P = T.match_buffer(a, (steps, batch, hidden), dtype)
        R = T.match_buffer(b, (hidden // width, hidden, width), dtype)
        H0 = T.match_buffer(c, (batch, hidden), dtype)
        Y = T.match_buffer(d, (steps, batch, hidden), dtype)
        H = T.match_buffer(e, (batch, hidden), dtype)
        for row in T.serial(batch):
            for j in T.serial(hidden):
                H[row, j] = H0[row, j]
            for time in T.serial(steps):
                with T.sblock("step"):
                    t = T.axis.opaque(steps, steps - 1 - time if is_reversed else time)
                    n = T.axis.opaque(batch, row)
                    T.reads()
                    T.writes()
                    gates = T.sblock_alloc_buffer((hidden,), dtype, scope="local")
                    sums = T.sblock_alloc_buffer((width,), dtype, scope="local")
                    for outer in T.serial(hidden // width):
                        for j in T.vectorized(width):
                            sums[j] = P[t, n, outer * width + j]
                        for k in T.serial(hidden):
                            for j in T.vectorized(width):
                                sums[j] = sums[j] + H[n, k] * R[outer, k, j]
                        for j in T.vectorized(width):
                            gates[outer * width + j] = sums[j]
                    for outer in T.serial(hidden // span):
                        for j in T.vectorized(span):
                            H[n, outer * span + j] = activation(gates[outer * span + j])
                        for j in T.vectorized(span):
                            Y[t, n, outer * span + j] = H[n, outer * span + j]

    return rnn


def lstm_kernel(hidden: int, dtype: str, functions: tuple[Function, ...], is_reversed: bool) -> Any:
    """Return ``(product, recurrence, peepholes (3, hidden), h0, c0) -> (y, h, c)``; peephole rows are i, o, f."""
    from tvm.script import tirx as T

    gate, candidate, output = functions
    columns = 4 * hidden
    width, span = panel_width(hidden), min(panel_width(hidden), SPAN)

    @T.prim_func(s_tir=True, private=True)  # type: ignore[untyped-decorator]
    def lstm(  # type: ignore[no-untyped-def]
        a: T.handle, b: T.handle, p: T.handle, c: T.handle, d: T.handle, e: T.handle, f: T.handle, g: T.handle
    ):
        T.func_attr(ATTRIBUTES)
        steps, batch = T.int64(), T.int64()
        P = T.match_buffer(a, (steps, batch, columns), dtype)
        R = T.match_buffer(b, (columns // width, hidden, width), dtype)
        W = T.match_buffer(p, (3, hidden), dtype)
        H0 = T.match_buffer(c, (batch, hidden), dtype)
        C0 = T.match_buffer(d, (batch, hidden), dtype)
        Y = T.match_buffer(e, (steps, batch, hidden), dtype)
        H = T.match_buffer(f, (batch, hidden), dtype)
        C = T.match_buffer(g, (batch, hidden), dtype)
        for row in T.serial(batch):
            for j in T.serial(hidden):
                H[row, j] = H0[row, j]
                C[row, j] = C0[row, j]
            for time in T.serial(steps):
                with T.sblock("step"):
                    t = T.axis.opaque(steps, steps - 1 - time if is_reversed else time)
                    n = T.axis.opaque(batch, row)
                    T.reads()
                    T.writes()
                    gates = T.sblock_alloc_buffer((columns,), dtype, scope="local")
                    sums = T.sblock_alloc_buffer((width,), dtype, scope="local")
                    kept = T.sblock_alloc_buffer((span,), dtype, scope="local")
                    forget = T.sblock_alloc_buffer((span,), dtype, scope="local")
                    for outer in T.serial(columns // width):
                        for j in T.vectorized(width):
                            sums[j] = P[t, n, outer * width + j]
                        for k in T.serial(hidden):
                            for j in T.vectorized(width):
                                sums[j] = sums[j] + H[n, k] * R[outer, k, j]
                        for j in T.vectorized(width):
                            gates[outer * width + j] = sums[j]
                    for outer in T.serial(hidden // span):
                        for j in T.vectorized(span):
                            kept[j] = C[n, outer * span + j]
                        for j in T.vectorized(span):
                            forget[j] = gate(gates[2 * hidden + outer * span + j] + W[2, outer * span + j] * kept[j])
                        for j in T.vectorized(span):
                            forget[j] = forget[j] * kept[j] + gate(
                                gates[outer * span + j] + W[0, outer * span + j] * kept[j]
                            ) * candidate(gates[3 * hidden + outer * span + j])
                        for j in T.vectorized(span):
                            C[n, outer * span + j] = forget[j]
                        for j in T.vectorized(span):
                            kept[j] = gate(
                                gates[hidden + outer * span + j] + W[1, outer * span + j] * forget[j]
                            ) * output(forget[j])
                        for j in T.vectorized(span):
                            H[n, outer * span + j] = kept[j]
                        for j in T.vectorized(span):
                            Y[t, n, outer * span + j] = kept[j]

    return lstm


def gru_kernel(hidden: int, dtype: str, functions: tuple[Function, ...], is_reversed: bool, *, linear: bool) -> Any:
    """Return ``(product, recurrence, bias (hidden,), h0) -> (y, h)``; ``linear``: reset after the product."""
    from tvm.script import tirx as T

    gate, candidate = functions
    width, span = panel_width(hidden), min(panel_width(hidden), SPAN)

    def source(reset: Any, state: Any) -> Any:
        return state if linear else reset * state

    def inner(reset: Any, total: Any, bias: Any) -> Any:
        return reset * (total + bias) if linear else total + bias

    @T.prim_func(s_tir=True, private=True)  # type: ignore[untyped-decorator]
    def gru(a: T.handle, b: T.handle, p: T.handle, c: T.handle, d: T.handle, e: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr(ATTRIBUTES)
        steps, batch = T.int64(), T.int64()
        P = T.match_buffer(a, (steps, batch, 3 * hidden), dtype)
        R = T.match_buffer(b, (3 * hidden // width, hidden, width), dtype)
        B = T.match_buffer(p, (hidden,), dtype)
        H0 = T.match_buffer(c, (batch, hidden), dtype)
        Y = T.match_buffer(d, (steps, batch, hidden), dtype)
        H = T.match_buffer(e, (batch, hidden), dtype)
        for row in T.serial(batch):
            for j in T.serial(hidden):
                H[row, j] = H0[row, j]
            for time in T.serial(steps):
                with T.sblock("step"):
                    t = T.axis.opaque(steps, steps - 1 - time if is_reversed else time)
                    n = T.axis.opaque(batch, row)
                    T.reads()
                    T.writes()
                    gates = T.sblock_alloc_buffer((3 * hidden,), dtype, scope="local")
                    used = T.sblock_alloc_buffer((hidden,), dtype, scope="local")
                    sums = T.sblock_alloc_buffer((width,), dtype, scope="local")
                    for outer in T.serial(2 * hidden // width):
                        for j in T.vectorized(width):
                            sums[j] = P[t, n, outer * width + j]
                        for k in T.serial(hidden):
                            for j in T.vectorized(width):
                                sums[j] = sums[j] + H[n, k] * R[outer, k, j]
                        for j in T.vectorized(width):
                            gates[outer * width + j] = sums[j]
                    for outer in T.serial(2 * hidden // span):
                        for j in T.vectorized(span):
                            gates[outer * span + j] = gate(gates[outer * span + j])
                    for outer in T.serial(hidden // span):
                        for j in T.vectorized(span):
                            used[outer * span + j] = source(gates[hidden + outer * span + j], H[n, outer * span + j])
                    for outer in T.serial(hidden // width):
                        for j in T.vectorized(width):
                            sums[j] = T.FloatImm(dtype, 0.0)
                        for k in T.serial(hidden):
                            for j in T.vectorized(width):
                                sums[j] = sums[j] + used[k] * R[2 * hidden // width + outer, k, j]
                        for j in T.vectorized(width):
                            gates[2 * hidden + outer * width + j] = sums[j]
                    for outer in T.serial(hidden // span):
                        for j in T.vectorized(span):
                            used[outer * span + j] = candidate(
                                P[t, n, 2 * hidden + outer * span + j]
                                + inner(
                                    gates[hidden + outer * span + j],
                                    gates[2 * hidden + outer * span + j],
                                    B[outer * span + j],
                                )
                            )
                        for j in T.vectorized(span):
                            H[n, outer * span + j] = used[outer * span + j] + gates[outer * span + j] * (
                                H[n, outer * span + j] - used[outer * span + j]
                            )
                        for j in T.vectorized(span):
                            Y[t, n, outer * span + j] = H[n, outer * span + j]

    return gru
