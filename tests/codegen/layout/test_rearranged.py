"""Tensors that are read through reshapes and transpositions, against numpy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, te
from tvm.relax import op
from tvm.script import relax as R

from forge_pipeline.codegen.layout.builder import Graph
from forge_pipeline.codegen.layout.rearranged import rearranged
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.target import Target

Array = np.ndarray[Any, Any]
EXTENTS = (2, 3, 4)
SHAPES = [shape for count in (1, 2, 3, 4) for shape in itertools.product((1, 2, 3, 4, 6, 8, 12, 24), repeat=count)
          if np.prod(shape) == np.prod(EXTENTS)]  # fmt: skip


Move = tuple[int, ...] | int
"""A shape, or which of all orders of the axes that there are."""


def moved(values: Array, move: Move) -> tuple[Array, list[int] | None]:
    """Return what a move makes of an array, and the order of axes if it is one."""
    if isinstance(move, tuple):
        return values.reshape(move), None
    orders = list(itertools.permutations(range(values.ndim)))
    order = list(orders[move % len(orders)])
    return values.transpose(order), order


def read(moves: list[Move]) -> tuple[int, Array, Array]:
    """Return how many moves are left, what is read through the others as ``EXTENTS``, and what numpy makes of all."""
    builder = relax.BlockBuilder()
    stages = [np.arange(np.prod(EXTENTS), dtype=np.float32).reshape(EXTENTS)]
    made = [relax.Var("source", R.Tensor(EXTENTS, "float32"))]
    with builder.function("main", [made[0]]):
        with builder.dataflow():
            for move in moves:
                result, order = moved(stages[-1], move)
                operator = op.permute_dims(made[-1], order) if order is not None else op.reshape(made[-1], result.shape)
                made.append(builder.emit(operator))
                stages.append(result)
            graph = Graph(builder=builder, machine=Machine.of(Target.from_tag("x86-64/v3")))
            base, place = rearranged(graph, made[-1], EXTENTS)
            output = builder.emit_output(made[-1])
        builder.emit_func_output(output)
    at = next(number for number, value in enumerate(made) if value.same_as(base))
    tensor = te.placeholder(stages[at].shape, "float32")
    result = te.compute(EXTENTS, lambda *axes: place.read(tensor, *axes))
    out = tvm.runtime.tensor(np.zeros(EXTENTS, np.float32))
    tvm.compile(te.create_prim_func([tensor, result]), target="llvm")(
        tvm.runtime.tensor(np.ascontiguousarray(stages[at])), out
    )
    return at, out.numpy(), stages[-1].reshape(EXTENTS)


@settings(max_examples=40)
@given(st.lists(st.sampled_from(SHAPES) | st.integers(0, 23), max_size=4))
def test_elements_are_found_where_the_moves_take_them_from(moves: list[Move]) -> None:
    _, found, wanted = read(moves)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("moves", "left"),
    [([(1, 2, 3, 4), (6, 4), (2, 3, 4)], 0), ([2, 2], 0), ([2, (1, 6, 4), (2, 3, 4)], 2), ([(4, 6), 1, (2, 3, 4)], 1)],
)
def test_places_are_not_divided(moves: list[Move], left: int) -> None:
    at, found, wanted = read(moves)
    assert at == left
    np.testing.assert_array_equal(found, wanted)
