"""Kernels for the steps of recurrent layers: one loop over time, so any number of steps is one kernel.

Each takes ``first`` and ``last``, which are X W^T + bias of all steps (steps, batch, gates * hidden) for the first and
the last direction, the recurrence matrices R^T in blocks of states (directions, blocks, parts, hidden, gates * width /
parts), whose last may be filled up, and how many steps each sequence of the batch has, read by a form that
``has_lengths`` alone. It gives the hidden state of every step (steps, directions, batch, hidden), zeros past a
sequence's length, and the final one (directions, batch, hidden), where the state lives meanwhile. Gate order and
equations: ONNX operator reference, LSTM-14, GRU-14, RNN-14.

``TILE`` sequences go through the steps together, and share what is read of R. A step goes block by block: products of
all gates of some states first, in registers, then what these gates do to the states. Products read a copy of the state
as it was before the step.
"""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

from forge_pipeline.codegen.onnx_import.recurrent.form import TILE, Form
from forge_pipeline.codegen.tir import script

ATTRIBUTES = {"tirx.noalias": True, "tirx.is_scheduled": True}


def float_products(form: Form, gates: int) -> Any:
    """Return ``sums(S, G, four, three, two, one, R, w, rows, block)``: G (TILE, gates * width) is S (TILE, hidden) by a
    block of R. The others are registers: the sums of so many sequences."""
    hidden, dtype, part, parts = form.hidden, form.dtype, form.part(gates), form.parts(gates)

    def product(count: int) -> Any:
        side_by_side = form.together(gates, count)

        @script.inline
        def some(S, G, A, R, w, block):  # type: ignore[no-untyped-def]
            for c in T.serial(parts // side_by_side):
                for r in T.unroll(count * side_by_side):
                    for j in T.vectorized(part):
                        A[r * part + j] = T.FloatImm(dtype, 0.0)
                for k in T.serial(hidden):
                    for r in T.unroll(count):
                        for s in T.unroll(side_by_side):
                            for j in T.vectorized(part):
                                A[(r * side_by_side + s) * part + j] = (
                                    A[(r * side_by_side + s) * part + j]
                                    + S[r, k] * R[w, block, c * side_by_side + s, k, j]
                                )
                for r in T.unroll(count):
                    for s in T.unroll(side_by_side):
                        for j in T.vectorized(part):
                            G[r, (c * side_by_side + s) * part + j] = A[(r * side_by_side + s) * part + j]

        return some

    of_four, of_three, of_two, of_one = (product(count) for count in range(TILE, 0, -1))

    @script.inline
    def sums(S, G, four, three, two, one, R, w, rows, block):  # type: ignore[no-untyped-def]
        if rows == 4:
            of_four(S, G, four, R, w, block)
        elif rows == 3:
            of_three(S, G, three, R, w, block)
        elif rows == 2:
            of_two(S, G, two, R, w, block)
        else:
            of_one(S, G, one, R, w, block)

    return sums


def skeleton(form: Form) -> tuple[Any, Any]:
    """Return what all kernels have in common, ``sequences`` and ``states``.

    The first runs ``begin(w, n, j)`` for each state of each sequence, and then ``step(w, tile, time)`` for each step of
    each tile: of its longest sequence. The second runs ``cells(count, w, row, n, t, block)`` for the ``count`` states
    of a block, of each sequence of a tile that is not at its end.
    """
    directions, hidden, width = form.directions, form.hidden, form.width

    @script.inline
    def sequences(steps, batch, L, Y, begin, step):  # type: ignore[no-untyped-def]
        for share in form.loop(directions * form.tiles(batch)):
            with T.sblock("sequences"):
                w = T.axis.opaque(T.int64(directions), share // form.tiles(batch))
                tile = T.axis.opaque(form.tiles(batch), share % form.tiles(batch))
                T.reads()
                T.writes()
                longest = T.sblock_alloc_buffer((1,), "int64", scope="local")
                longest[0] = T.int64(0)
                for row in T.serial(form.rows(tile, batch)):
                    longest[0] = T.max(longest[0], form.count(L, tile * TILE + row, steps))
                    for j in T.serial(hidden):
                        begin(w, tile * TILE + row, j)
                for time in T.serial(longest[0]):
                    with T.sblock("step"):
                        now = T.axis.opaque(steps, time)
                        T.reads()
                        T.writes()
                        step(w, tile, now)
                if form.has_lengths:
                    for row in T.serial(form.rows(tile, batch)):
                        for time in T.serial(steps - form.count(L, tile * TILE + row, steps)):
                            for j in T.serial(hidden):
                                Y[form.count(L, tile * TILE + row, steps) + time, w, tile * TILE + row, j] = T.FloatImm(
                                    form.dtype, 0.0
                                )

    @script.inline
    def states(steps, batch, L, w, tile, time, block, cells):  # type: ignore[no-untyped-def]
        for row in T.serial(form.rows(tile, batch)):
            if time < form.count(L, tile * TILE + row, steps):
                if block < hidden // width:
                    cells(
                        width, w, row, tile * TILE + row,
                        form.moment(w, time, form.count(L, tile * TILE + row, steps)), block,
                    )  # fmt: skip
                else:
                    cells(
                        form.rest, w, row, tile * TILE + row,
                        form.moment(w, time, form.count(L, tile * TILE + row, steps)), block,
                    )  # fmt: skip

    return sequences, states
