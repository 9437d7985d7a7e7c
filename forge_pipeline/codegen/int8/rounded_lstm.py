"""Steps of an LSTM whose state is rounded to bytes, by the instructions that a machine has for products of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.script import tirx as T

from forge_pipeline.codegen.int8 import weights
from forge_pipeline.codegen.int8.isa.dot_product import DotProduct, Operands
from forge_pipeline.codegen.int8.isa.instruction import add_modulo
from forge_pipeline.codegen.int8.isa.pmaddwd import PMADDUBSW, PMADDWD
from forge_pipeline.codegen.int8.isa.step_pairs import MOST
from forge_pipeline.codegen.int8.isa.table import dot_product, has_dot_product, instruction_set
from forge_pipeline.codegen.layout.builder import Array, Graph, Value, shape_of
from forge_pipeline.codegen.onnx_import.recurrent.form import TILE, Form
from forge_pipeline.codegen.onnx_import.recurrent.rounded import GATES, NAMES, Products, form_of, kernel
from forge_pipeline.codegen.tir import script
from forge_pipeline.codegen.tir.machine import Machine

RECURRENCE = 1
"""Which operand of the kernel R is."""

SIDE_BY_SIDE = 2
"""Vectors of sums of each of several sequences."""


def emit(graph: Graph, call: relax.Call) -> Value | None:
    """Take the steps of a layer whose weights fit what the machine multiplies."""
    name = str(call.args[0].name_hint) if hasattr(call.args[0], "name_hint") else ""
    back = next((back for back, own in enumerate(NAMES) if name.rstrip("0123456789") == own), None)
    if back is None or not has_dot_product(graph.machine):
        return None
    operands = list(call.args[1].fields)
    stored = graph.look(operands[RECURRENCE]).constant
    hidden = int(shape_of(operands[-1])[-1])
    form, lanes = form_of(hidden, is_reverse=bool(back)), graph.machine.lanes
    if stored is None or (GATES * form.width) % lanes:
        return None
    matrix = stored.transpose(0, 2, 1, 3).reshape(form.blocks, hidden, GATES * form.width)
    fitting = weights.to_int8_or_int16(graph.machine, np.moveaxis(matrix, 1, -1).reshape(-1, hidden))
    if fitting is None:
        return None
    dot = _dot_product(graph.machine, fitting)
    packed, times = _packed(graph, form, matrix.astype(fitting.dtype), dot)
    products = _products(form, dot, packed, times, lanes)
    values = [graph.plain(graph.look(operand)) for operand in operands]
    values[RECURRENCE] = graph.constant(packed)
    variable = graph.builder.add_func(kernel(form, products), NAMES[back])
    kinds = list(call.ty.fields)
    made = graph.emit(relax.call_tir(variable, values, kinds))
    parts = [graph.emit(relax.TupleGetItem(made, place)) for place in range(len(kinds))]
    return Value(parts=tuple(Value(plain=part) for part in parts))


def _dot_product(machine: Machine, weight: Array) -> DotProduct:
    """Return the dot product for weights (columns, hidden): `pmaddubsw`, half the instructions of widening, where no
    two neighbours that it adds up in int16 exceed that with any bytes."""
    columns, hidden = weight.shape
    pairs = np.zeros((columns, -(-hidden // 2), 2), np.int16)
    pairs.reshape(columns, -1)[:, :hidden] = weight
    largest = max(int(np.maximum(signed, 0).sum(axis=-1, dtype=np.int32).max()) for signed in (pairs, -pairs))
    can_pair = instruction_set(machine).saturating_pairs and largest <= MOST
    return PAIRS if can_pair else dot_product(machine)


def _pairs(of: Operands) -> str:
    ones = f"T.broadcast(T.int16(1), {2 * of.lanes})"
    pairs = PMADDUBSW.script(f"int16x{2 * of.lanes}", of.activations_as("uint8"), of.weights_as("int8"), bits=of.bits)
    return add_modulo(of.sums, PMADDWD.script(of.int32, pairs, ones, bits=of.bits), of.lanes)


PAIRS = DotProduct(
    name="pmaddubsw_pairs", instructions=(PMADDUBSW, PMADDWD), emit=_pairs, k_inner=4, multiplies=2, others=1,
    latency=1, scratch=2,
)  # fmt: skip
"""Products of uint8 by int8 of which two fit int16."""


def _packed(graph: Graph, form: Form, matrix: Array, dot: DotProduct) -> tuple[Array, int]:
    """Return (blocks, hidden, columns) as (blocks, groups, vectors, lanes * k_inner), and how often each number of a
    state is read: once for each part that its weights have."""
    parts, times = weights.split_into_parts(graph.machine, matrix, axis=1)
    blocks, depth, columns = parts.shape
    groups = -(-depth // dot.k_inner)
    full = np.zeros((blocks, groups * dot.k_inner, columns), parts.dtype)
    full[:, :depth] = parts
    lanes = graph.machine.lanes
    apart = full.reshape(blocks, groups, dot.k_inner, columns // lanes, lanes).transpose(0, 1, 3, 4, 2)
    return np.ascontiguousarray(apart.reshape(blocks, groups, columns // lanes, lanes * dot.k_inner)), times


@dataclass(frozen=True, slots=True)
class _Part:
    """What an instruction calls B or C, as a part of a buffer from a place on."""

    buffer: Any
    place: tuple[Any, ...]

    def vload(self, begin: Any, dtype: str) -> Any:
        """Load a vector from its beginning."""
        return self.buffer.vload([*self.place], dtype)

    def __getitem__(self, ramp: Any) -> Any:
        """Load the vector that it is."""
        return self.buffer[T.ramp(self.place[0], 1, ramp.lanes)]


def _products(form: Form, dot: DotProduct, packed: Array, times: int, lanes: int) -> Products:
    _, groups, vectors, _ = packed.shape
    hidden, k_inner = form.hidden, dot.k_inner
    operands = Operands(
        lanes=lanes, k_inner=k_inner, activations="A", weight_dtype=str(packed.dtype), full=bool((packed == -128).any())
    )
    step = compile(dot.emit(operands), dot.name, "eval")

    def added(A: Any, place: Any, R: Any, at: tuple[Any, ...], S: Any, row: Any) -> Any:
        """Return the sums at ``place`` with those of one more step: script of our own, as a template has it."""
        state = T.reinterpret("int32", S.vload([row, at[1] * k_inner], f"{dot.activation}x{k_inner}"))
        names = {"T": T, "A": T.broadcast(state, lanes), "B": _Part(R, (*at, 0)), "C": _Part(A, (place,))}
        return eval(step, names)  # noqa: S307

    def product(count: int, side_by_side: int) -> Any:
        @script.inline
        def some(S, G, A, R, row, block):  # type: ignore[no-untyped-def]
            for c in T.serial(vectors // side_by_side):
                for v in T.unroll(count * side_by_side):
                    A[T.ramp(v * lanes, 1, lanes)] = T.broadcast(T.int32(0), lanes)
                for k in T.serial(groups):
                    for r in T.unroll(count):
                        for v in T.unroll(side_by_side):
                            A[T.ramp((r * side_by_side + v) * lanes, 1, lanes)] = added(
                                A, (r * side_by_side + v) * lanes, R, (block, k, c * side_by_side + v), S, row + r
                            )
                for r in T.unroll(count):
                    for v in T.unroll(side_by_side):
                        for j in T.vectorized(lanes):
                            G[row + r, (c * side_by_side + v) * lanes + j] = A[(r * side_by_side + v) * lanes + j]

        return some

    side = SIDE_BY_SIDE if vectors % SIDE_BY_SIDE == 0 else 1
    of_four, of_two, of_one = product(TILE, side), product(2, side), product(1, vectors)

    @script.inline
    def again(S, rows):  # type: ignore[no-untyped-def]
        for row in T.serial(rows):
            for more in T.serial(times - 1):
                for j in T.serial(hidden):
                    S[row, (more + 1) * hidden + j] = S[row, j]

    @script.inline
    def sums(S, G, A, R, rows, block):  # type: ignore[no-untyped-def]
        if block == 0:
            again(S, rows)
        if rows == TILE:
            of_four(S, G, A, R, 0, block)
        else:
            for pair in T.serial(rows // 2):
                of_two(S, G, A, R, pair * 2, block)
            for last in T.serial(rows % 2):
                of_one(S, G, A, R, rows - 1 + last, block)

    return Products(
        shape=packed.shape,
        dtype=str(packed.dtype),
        depth=groups * k_inner,
        state_dtype="uint8" if dot.activation == "int8" else dot.activation,
        registers=max(TILE * side, vectors) * lanes,
        offset=dot.activation_offset,
        sums=sums,
    )


HANDLERS = {"relax.call_tir": emit}
