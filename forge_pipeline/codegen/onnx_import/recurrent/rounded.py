"""The kernel of an LSTM whose state is rounded to bytes at every step, by a scale that is measured in all sequences.

The state is rounded as DynamicQuantizeLinear does it, and multiplied by bytes in int32, exactly; what the gates do
then is that of an LSTM of floats. How bytes are multiplied is `Products`: plainly here, for any machine, and by the
instructions of one in `int8.rounded_lstm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from tvm.script import tirx as T

from forge_pipeline.codegen.layout.affine import LEVELS, ROUNDS
from forge_pipeline.codegen.onnx_import.recurrent.form import TILE, Form, in_blocks, width_of
from forge_pipeline.codegen.onnx_import.recurrent.functions import functions_of
from forge_pipeline.codegen.onnx_import.recurrent.lstm import lstm_cells
from forge_pipeline.codegen.onnx_import.recurrent.steps import ATTRIBUTES
from forge_pipeline.codegen.tir import script

NAMES: Final = ("rounded_lstm_steps", "rounded_lstm_steps_back")
"""The names by which schedules know the kernel, from the first step on and from the last."""

GATES: Final = 4
SIDE_BY_SIDE: Final = 32
"""Numbers whose extremes are followed at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """How rows of a state in bytes are multiplied by a block of R.

    ``shape`` and ``dtype`` are R's, ``depth`` is how many ``state_dtype`` a row of the state is held in, ``registers``
    how many int32 sums those of several sequences take at most. ``sums(S, G, A, R, rows, block)`` gives G (TILE, 4
    width) with ``A`` for registers. A state of int16 is held without its zero point. Where it is held in bytes, the
    zero point times R's totals is taken from the sums, which have ``offset`` less for every number of the state.
    """

    shape: tuple[int, ...]
    dtype: str
    depth: int
    state_dtype: str
    registers: int
    offset: int
    sums: Any


def form_of(hidden: int, *, is_reverse: bool) -> Form:
    """Return the form of a layer of one direction."""
    return Form(
        hidden=hidden, dtype="float32", reversals=(is_reverse,), width=width_of("LSTM", hidden), is_parallel=False
    )


def packed(form: Form, integers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return R (hidden, 4 hidden) as ``plain_products`` read it: (blocks, parts, hidden, 4 width / parts)."""
    found: np.ndarray[Any, Any] = in_blocks(integers.T[None], GATES, form)[0]
    return found


def by_block(form: Form, columns: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a number for each column of R as (blocks, 4 width)."""
    found: np.ndarray[Any, Any] = in_blocks(columns[None, :, None], GATES, form)
    return found.reshape(form.blocks, GATES * form.width)


def plain_products(form: Form) -> Products:
    """Return products as C would write them, of int16."""
    part, parts = form.part(GATES), form.parts(GATES)

    @script.inline
    def sums(S, G, A, R, rows, block):  # type: ignore[no-untyped-def]
        for row in T.serial(rows):
            for c in T.serial(parts):
                for j in T.vectorized(part):
                    A[j] = T.int32(0)
                for k in T.serial(form.hidden):
                    for j in T.vectorized(part):
                        A[j] = A[j] + S[row, k].astype("int32") * R[block, c, k, j].astype("int32")
                for j in T.vectorized(part):
                    G[row, c * part + j] = A[j]

    shape = (form.blocks, parts, form.hidden, part)
    return Products(
        shape=shape, dtype="int16", depth=form.hidden, state_dtype="int16", registers=part, offset=0, sums=sums
    )


def kernel(form: Form, products: Products) -> Any:
    """Return ``(product, recurrence, scale, totals, peepholes, h0, c0) -> (y, h, c)`` of one direction.

    ``scale`` and ``totals`` (blocks, 4 width) are those of R's columns; peepholes are zeros.
    """
    hidden, width, columns = form.hidden, form.width, GATES * form.width
    cells_of = lstm_cells(form, functions_of("LSTM", {}, 1, form.dtype))
    whole = hidden // SIDE_BY_SIDE

    is_wide = products.state_dtype == "int16"

    def held(value: Any, scale: Any, zero: Any) -> Any:
        number = rounded(value, scale, zero)
        return (number - zero.astype("int32") if is_wide else number).astype(products.state_dtype)

    def sum_of(found: Any, zero: Any, total: Any) -> Any:
        return found if is_wide else found - (zero.astype("int32") - T.int32(products.offset)) * total

    def scale_of(low: Any, high: Any) -> Any:
        return T.Select(high == low, T.float32(1), (high - low) / T.float32(LEVELS))

    def zero_of(low: Any, scale: Any) -> Any:
        return T.nearbyint(T.min(T.max(T.float32(0) - low / scale, T.float32(0)), T.float32(LEVELS)))

    def rounded(value: Any, scale: Any, zero: Any) -> Any:
        steps = T.max(T.min(value / scale, T.float32(LEVELS) - zero), T.float32(0) - zero)
        return (T.reinterpret("int32", steps + T.float32(ROUNDS)) + zero.astype("int32")) & T.int32(LEVELS)

    @script.prim_func(s_tir=True, private=True)
    def lstm(  # type: ignore[no-untyped-def]
        a: T.handle, b: T.handle, s: T.handle, z: T.handle, p: T.handle, c: T.handle, d: T.handle, e: T.handle,
        f: T.handle, g: T.handle,
    ):  # fmt: skip
        T.func_attr(ATTRIBUTES)
        steps, batch = T.int64(), T.int64()
        P = T.match_buffer(a, (steps, batch, GATES * hidden), "float32")
        R = T.match_buffer(b, products.shape, products.dtype)
        F = T.match_buffer(s, (form.blocks, columns), "float32")
        Z = T.match_buffer(z, (form.blocks, columns), "int32")
        W = T.match_buffer(p, (1, 3, hidden), "float32")
        H0 = T.match_buffer(c, (1, batch, hidden), "float32")
        C0 = T.match_buffer(d, (1, batch, hidden), "float32")
        Y = T.match_buffer(e, (steps, 1, batch, hidden), "float32")
        H = T.match_buffer(f, (1, batch, hidden), "float32")
        C = T.match_buffer(g, (1, batch, hidden), "float32")
        for direction in T.serial(1):
            with T.sblock("sequences"):
                w = T.axis.opaque(1, direction)
                T.reads()
                T.writes()
                S = T.sblock_alloc_buffer((TILE, products.depth), products.state_dtype, scope="local")
                K = T.sblock_alloc_buffer((TILE, columns), "int32", scope="local")
                G = T.sblock_alloc_buffer((TILE, columns), "float32", scope="local")
                A = T.sblock_alloc_buffer((products.registers,), "int32", scope="local")
                kept = T.sblock_alloc_buffer((4 * width,), "float32", scope="local")
                low = T.sblock_alloc_buffer((SIDE_BY_SIDE,), "float32", scope="local")
                high = T.sblock_alloc_buffer((SIDE_BY_SIDE,), "float32", scope="local")
                scale = T.sblock_alloc_buffer((2,), "float32", scope="local")
                for n in T.serial(batch):
                    for j in T.serial(hidden):
                        H[w, n, j] = H0[w, n, j]
                        C[w, n, j] = C0[w, n, j]
                for time in T.serial(steps):
                    for j in T.vectorized(SIDE_BY_SIDE):
                        low[j] = T.float32(0)
                    for j in T.vectorized(SIDE_BY_SIDE):
                        high[j] = T.float32(0)
                    for n in T.serial(batch):
                        for vector in T.serial(whole):
                            for j in T.vectorized(SIDE_BY_SIDE):
                                low[j] = T.min(low[j], H[w, n, vector * SIDE_BY_SIDE + j])
                            for j in T.vectorized(SIDE_BY_SIDE):
                                high[j] = T.max(high[j], H[w, n, vector * SIDE_BY_SIDE + j])
                        for j in T.serial(hidden % SIDE_BY_SIDE):
                            low[j] = T.min(low[j], H[w, n, whole * SIDE_BY_SIDE + j])
                            high[j] = T.max(high[j], H[w, n, whole * SIDE_BY_SIDE + j])
                    for j in T.serial(SIDE_BY_SIDE - 1):
                        low[0] = T.min(low[0], low[j + 1])
                        high[0] = T.max(high[0], high[j + 1])
                    scale[0] = scale_of(low[0], high[0])
                    scale[1] = zero_of(low[0], scale[0])
                    for tile in T.serial(form.tiles(batch)):
                        for row in T.serial(form.rows(tile, batch)):
                            for j in T.vectorized(hidden):
                                S[row, j] = held(H[w, tile * TILE + row, j], scale[0], scale[1])
                        for block in T.serial(form.blocks):
                            products.sums(S, K, A, R, form.rows(tile, batch), block)
                            for row in T.serial(form.rows(tile, batch)):
                                for j in T.vectorized(columns):
                                    G[row, j] = sum_of(K[row, j], scale[1], Z[block, j]).astype("float32") * (
                                        scale[0] * F[block, j]
                                    )
                                if block < hidden // width:
                                    cells_of(
                                        width, G, kept, P, P, W, H, C, Y, w, row, tile * TILE + row,
                                        form.moment(w, time, steps), block,
                                    )  # fmt: skip
                                else:
                                    cells_of(
                                        form.rest, G, kept, P, P, W, H, C, Y, w, row, tile * TILE + row,
                                        form.moment(w, time, steps), block,
                                    )  # fmt: skip

    return lstm
