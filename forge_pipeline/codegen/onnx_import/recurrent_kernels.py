"""Kernels for the steps of recurrent layers: one loop over time, so any number of steps is one kernel.

Each takes ``first`` and ``last``, which are X W^T + bias of all steps (steps, batch, gates * hidden) for the first and
the last direction, the recurrence matrices R^T in panels (directions, gates * hidden / width, hidden, width), so that
they are read in order, and how many steps each sequence of the batch has, read by a form that ``has_lengths`` alone. It
gives the hidden state of every step (steps, directions, batch, hidden), zeros past a sequence's length, and the
final one (directions, batch, hidden), where the state lives meanwhile. Sequences, one for each direction and row,
know nothing of each other: they may run side by side. Gate order and equations: ONNX operator reference, LSTM-14,
GRU-14, RNN-14.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from forge_pipeline.codegen.onnx_import.recurrent_functions import Function
from forge_pipeline.codegen.tir import script

ATTRIBUTES = {"tirx.noalias": True, "tirx.is_scheduled": True}
WIDEST = 32
"""Sums side by side: four vectors of AVX2, as many as hide the latency of the additions."""

SPAN = 16
"""States at a time, whose gates are evaluated together."""


def panel_width(hidden: int) -> int:
    """Return the largest power of two up to WIDEST that divides ``hidden``: no tail, and a few registers at most."""
    return next(width for width in (WIDEST, 16, 8, 4, 2, 1) if hidden % width == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """``hidden`` states of ``dtype``; ``reversals``: for each direction, whether it begins with the last step.

    Of two directions the second is reversed. ``is_parallel``: the sequences are shared out among the threads.
    ``is_coupled``: what an LSTM forgets is what it takes no new input for.
    """

    hidden: int
    dtype: str
    reversals: tuple[bool, ...]
    is_parallel: bool
    has_lengths: bool = False
    is_coupled: bool = False

    @property
    def directions(self) -> int:
        """How many directions there are."""
        return len(self.reversals)

    def direction(self, sequence: Any, batch: Any) -> Any:
        """Return the direction of a sequence; sequences of one direction are neighbours."""
        return sequence // batch if self.directions > 1 else tirx.const(0, "int64")

    def row(self, sequence: Any, batch: Any) -> Any:
        """Return the row of the batch that a sequence is."""
        return sequence % batch if self.directions > 1 else sequence

    def of(self, direction: Any, first: Any, last: Any) -> Any:
        """Return what belongs to a direction."""
        return tirx.Select(direction == 0, first, last) if self.directions > 1 else first

    def moment(self, direction: Any, time: Any, steps: Any) -> Any:
        """Return which step comes at ``time``."""
        if self.directions > 1:
            return time + direction * (steps - 1 - 2 * time)
        return steps - 1 - time if self.reversals[0] else time

    def extent(self, batch: Any) -> Any:
        """Return the extent of the buffer of lengths."""
        return batch if self.has_lengths else tirx.const(1, "int64")

    def count(self, lengths: Any, row: Any, steps: Any) -> Any:
        """Return how many steps a sequence has."""
        if not self.has_lengths:
            return steps
        return tirx.max(tirx.min(lengths[row].astype("int64"), steps), tirx.const(0, "int64"))

    def loop(self, extent: Any) -> Any:
        """Return the loop over all sequences."""
        return T.parallel(extent) if self.is_parallel else T.serial(extent)


def _skeleton(form: Form) -> tuple[Any, Any]:
    """Return what all kernels have in common, ``sequences`` and ``gate_sums``.

    The first runs ``begin(w, n, j)`` for each state of a sequence, then ``step(w, n, t)`` for each step in order; the
    second adds up ``panels`` panels of gates for one row at one step, from its inputs and its state.
    """
    directions, hidden, width = form.directions, form.hidden, panel_width(form.hidden)

    @script.inline
    def sequences(steps, batch, L, Y, begin, step):  # type: ignore[no-untyped-def]
        for sequence in form.loop(directions * batch):
            with T.sblock("sequence"):
                w = T.axis.opaque(T.int64(directions), form.direction(sequence, batch))
                n = T.axis.opaque(batch, form.row(sequence, batch))
                T.reads()
                T.writes()
                for j in T.serial(hidden):
                    begin(w, n, j)
                for time in T.serial(form.count(L, n, steps)):
                    with T.sblock("step"):
                        t = T.axis.opaque(steps, form.moment(w, time, form.count(L, n, steps)))
                        T.reads()
                        T.writes()
                        step(w, n, t)
                if form.has_lengths:
                    for time in T.serial(steps - form.count(L, n, steps)):
                        for j in T.serial(hidden):
                            Y[form.count(L, n, steps) + time, w, n, j] = T.FloatImm(form.dtype, 0.0)

    @script.inline
    def gate_sums(gates, sums, P, Q, H, R, w, n, t, panels):  # type: ignore[no-untyped-def]
        for outer in T.serial(panels):
            for j in T.vectorized(width):
                sums[j] = form.of(w, P[t, n, outer * width + j], Q[t, n, outer * width + j])
            for k in T.serial(hidden):
                for j in T.vectorized(width):
                    sums[j] = sums[j] + H[w, n, k] * R[w, outer, k, j]
            for j in T.vectorized(width):
                gates[outer * width + j] = sums[j]

    return sequences, gate_sums


def rnn_kernel(form: Form, functions: tuple[Function, ...]) -> Any:
    """Return ``(first, last, recurrence, lengths, h0) -> (y, h)``."""
    (activation,) = functions
    directions, hidden, dtype = form.directions, form.hidden, form.dtype
    width, span = panel_width(hidden), min(panel_width(hidden), SPAN)
    sequences, gate_sums = _skeleton(form)

    @script.prim_func(s_tir=True, private=True)
    def rnn(  # type: ignore[no-untyped-def]
        a: T.handle, q: T.handle, b: T.handle, m: T.handle, c: T.handle, d: T.handle, e: T.handle,
    ):  # fmt: skip
        T.func_attr(ATTRIBUTES)
        steps, batch = T.int64(), T.int64()
        P = T.match_buffer(a, (steps, batch, hidden), dtype)
        Q = T.match_buffer(q, (steps, batch, hidden), dtype)
        R = T.match_buffer(b, (directions, hidden // width, hidden, width), dtype)
        L = T.match_buffer(m, (form.extent(batch),), "int32")
        H0 = T.match_buffer(c, (directions, batch, hidden), dtype)
        Y = T.match_buffer(d, (steps, directions, batch, hidden), dtype)
        H = T.match_buffer(e, (directions, batch, hidden), dtype)

        @script.inline
        def begin(w, n, j):  # type: ignore[no-untyped-def]
            H[w, n, j] = H0[w, n, j]

        @script.inline
        def step(w, n, t):  # type: ignore[no-untyped-def]
            gates = T.sblock_alloc_buffer((hidden,), dtype, scope="local")
            sums = T.sblock_alloc_buffer((width,), dtype, scope="local")
            gate_sums(gates, sums, P, Q, H, R, w, n, t, hidden // width)
            for outer in T.serial(hidden // span):
                for j in T.vectorized(span):
                    H[w, n, outer * span + j] = activation(w, gates[outer * span + j])
                for j in T.vectorized(span):
                    Y[t, w, n, outer * span + j] = H[w, n, outer * span + j]

        sequences(steps, batch, L, Y, begin, step)

    return rnn


def lstm_kernel(form: Form, functions: tuple[Function, ...]) -> Any:
    """Return ``(first, last, recurrence, lengths, peepholes, h0, c0) -> (y, h, c)``.

    ``peepholes`` (directions, 3, hidden): those of i, o and f.
    """
    gate, candidate, output = functions

    def forgotten(w: Any, forget: Any, take: Any) -> Any:
        return T.FloatImm(dtype, 1.0) - gate(w, take) if form.is_coupled else gate(w, forget)

    directions, hidden, dtype = form.directions, form.hidden, form.dtype
    columns = 4 * hidden
    width, span = panel_width(hidden), min(panel_width(hidden), SPAN)
    sequences, gate_sums = _skeleton(form)

    @script.prim_func(s_tir=True, private=True)
    def lstm(  # type: ignore[no-untyped-def]
        a: T.handle, q: T.handle, b: T.handle, m: T.handle, p: T.handle, c: T.handle, d: T.handle, e: T.handle,
        f: T.handle, g: T.handle,
    ):  # fmt: skip
        T.func_attr(ATTRIBUTES)
        steps, batch = T.int64(), T.int64()
        P = T.match_buffer(a, (steps, batch, columns), dtype)
        Q = T.match_buffer(q, (steps, batch, columns), dtype)
        R = T.match_buffer(b, (directions, columns // width, hidden, width), dtype)
        L = T.match_buffer(m, (form.extent(batch),), "int32")
        W = T.match_buffer(p, (directions, 3, hidden), dtype)
        H0 = T.match_buffer(c, (directions, batch, hidden), dtype)
        C0 = T.match_buffer(d, (directions, batch, hidden), dtype)
        Y = T.match_buffer(e, (steps, directions, batch, hidden), dtype)
        H = T.match_buffer(f, (directions, batch, hidden), dtype)
        C = T.match_buffer(g, (directions, batch, hidden), dtype)

        @script.inline
        def begin(w, n, j):  # type: ignore[no-untyped-def]
            H[w, n, j] = H0[w, n, j]
            C[w, n, j] = C0[w, n, j]

        @script.inline
        def step(w, n, t):  # type: ignore[no-untyped-def]
            gates = T.sblock_alloc_buffer((columns,), dtype, scope="local")
            sums = T.sblock_alloc_buffer((width,), dtype, scope="local")
            kept = T.sblock_alloc_buffer((span,), dtype, scope="local")
            forget = T.sblock_alloc_buffer((span,), dtype, scope="local")
            gate_sums(gates, sums, P, Q, H, R, w, n, t, columns // width)
            for outer in T.serial(hidden // span):
                for j in T.vectorized(span):
                    kept[j] = C[w, n, outer * span + j]
                for j in T.vectorized(span):
                    forget[j] = forgotten(
                        w,
                        gates[2 * hidden + outer * span + j] + W[w, 2, outer * span + j] * kept[j],
                        gates[outer * span + j] + W[w, 0, outer * span + j] * kept[j],
                    )
                for j in T.vectorized(span):
                    forget[j] = forget[j] * kept[j] + gate(
                        w, gates[outer * span + j] + W[w, 0, outer * span + j] * kept[j]
                    ) * candidate(w, gates[3 * hidden + outer * span + j])
                for j in T.vectorized(span):
                    C[w, n, outer * span + j] = forget[j]
                for j in T.vectorized(span):
                    kept[j] = gate(
                        w, gates[hidden + outer * span + j] + W[w, 1, outer * span + j] * forget[j]
                    ) * output(w, forget[j])
                for j in T.vectorized(span):
                    H[w, n, outer * span + j] = kept[j]
                for j in T.vectorized(span):
                    Y[t, w, n, outer * span + j] = kept[j]

        sequences(steps, batch, L, Y, begin, step)

    return lstm


def gru_kernel(form: Form, functions: tuple[Function, ...], *, linear: bool) -> Any:
    """Return ``(first, last, recurrence, lengths, bias (directions, hidden), h0) -> (y, h)``.

    ``linear``: the reset gate multiplies the state's product, not the state before it.
    """
    gate, candidate = functions
    directions, hidden, dtype = form.directions, form.hidden, form.dtype
    width, span = panel_width(hidden), min(panel_width(hidden), SPAN)

    def source(reset: Any, state: Any) -> Any:
        return state if linear else reset * state

    def inner(reset: Any, total: Any, bias: Any) -> Any:
        return reset * (total + bias) if linear else total + bias

    sequences, gate_sums = _skeleton(form)

    @script.prim_func(s_tir=True, private=True)
    def gru(  # type: ignore[no-untyped-def]
        a: T.handle, q: T.handle, b: T.handle, m: T.handle, p: T.handle, c: T.handle, d: T.handle, e: T.handle,
    ):  # fmt: skip
        T.func_attr(ATTRIBUTES)
        steps, batch = T.int64(), T.int64()
        P = T.match_buffer(a, (steps, batch, 3 * hidden), dtype)
        Q = T.match_buffer(q, (steps, batch, 3 * hidden), dtype)
        R = T.match_buffer(b, (directions, 3 * hidden // width, hidden, width), dtype)
        L = T.match_buffer(m, (form.extent(batch),), "int32")
        B = T.match_buffer(p, (directions, hidden), dtype)
        H0 = T.match_buffer(c, (directions, batch, hidden), dtype)
        Y = T.match_buffer(d, (steps, directions, batch, hidden), dtype)
        H = T.match_buffer(e, (directions, batch, hidden), dtype)

        @script.inline
        def begin(w, n, j):  # type: ignore[no-untyped-def]
            H[w, n, j] = H0[w, n, j]

        @script.inline
        def step(w, n, t):  # type: ignore[no-untyped-def]
            gates = T.sblock_alloc_buffer((3 * hidden,), dtype, scope="local")
            used = T.sblock_alloc_buffer((hidden,), dtype, scope="local")
            sums = T.sblock_alloc_buffer((width,), dtype, scope="local")
            gate_sums(gates, sums, P, Q, H, R, w, n, t, 2 * hidden // width)
            for outer in T.serial(2 * hidden // span):
                for j in T.vectorized(span):
                    gates[outer * span + j] = gate(w, gates[outer * span + j])
            for outer in T.serial(hidden // span):
                for j in T.vectorized(span):
                    used[outer * span + j] = source(gates[hidden + outer * span + j], H[w, n, outer * span + j])
            for outer in T.serial(hidden // width):
                for j in T.vectorized(width):
                    sums[j] = T.FloatImm(dtype, 0.0)
                for k in T.serial(hidden):
                    for j in T.vectorized(width):
                        sums[j] = sums[j] + used[k] * R[w, 2 * hidden // width + outer, k, j]
                for j in T.vectorized(width):
                    gates[2 * hidden + outer * width + j] = sums[j]
            for outer in T.serial(hidden // span):
                for j in T.vectorized(span):
                    used[outer * span + j] = candidate(
                        w,
                        form.of(
                            w,
                            P[t, n, 2 * hidden + outer * span + j],
                            Q[t, n, 2 * hidden + outer * span + j],
                        )
                        + inner(
                            gates[hidden + outer * span + j],
                            gates[2 * hidden + outer * span + j],
                            B[w, outer * span + j],
                        ),
                    )
                for j in T.vectorized(span):
                    H[w, n, outer * span + j] = used[outer * span + j] + gates[outer * span + j] * (
                        H[w, n, outer * span + j] - used[outer * span + j]
                    )
                for j in T.vectorized(span):
                    Y[t, w, n, outer * span + j] = H[w, n, outer * span + j]

        sequences(steps, batch, L, Y, begin, step)

    return gru
