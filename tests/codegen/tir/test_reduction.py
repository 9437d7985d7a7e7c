"""Reductions over any axes, of extents that are open or not: as ONNX Runtime has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import helper

from tests.support.tiled import Shape, assert_same, compiled, model

SIZES = [{"n": n, "t": t} for n in (1, 3) for t in (1, 7, 40)]


def reduced(operator: str, axes: Sequence[int], shape: Shape, *, keepdims: int = 0) -> None:
    """Compare a reduction of what comes out of Tanh, halved; no kernel is left to plain loops."""
    weights = {"axes": np.array(axes), "half": np.array(0.5, np.float32)}
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"]),
        helper.make_node("ReduceSum", ["t", "axes"], ["r"], keepdims=keepdims)
        if operator == "ReduceSum"
        else helper.make_node(operator, ["t"], ["r"], axes=axes, keepdims=keepdims),
        helper.make_node("Mul", ["r", "half"], ["y"]),
    ]
    used = weights if operator == "ReduceSum" else {"half": weights["half"]}
    assert_same(model(nodes, {"x": shape}, used), SIZES if "n" in shape else [{}], terms=200)


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2"])
def test_an_open_axis_before_others_is_reduced_row_by_row(operator: str) -> None:
    reduced(operator, [1], ("n", "t", 48))


@pytest.mark.parametrize("shape", [("n", "t", 33), ("t", "n", "n"), ("n", 5, "t")])
def test_rows_may_be_of_any_length(shape: Shape) -> None:
    reduced("ReduceSum", [1], shape, keepdims=1)


def test_several_axes_before_the_last_are_reduced_together() -> None:
    reduced("ReduceMax", [0, 1], ("n", "t", 48))
    reduced("ReduceMean", [0, 2], (3, 5, 6, 20))


@pytest.mark.parametrize("shape", [(1, 196, 768), (3, 512, 80), (2, 49, 48)])
def test_rows_are_reduced_in_groups(shape: Shape) -> None:
    reduced("ReduceSum", [1], shape)
    reduced("ReduceMean", [1], shape, keepdims=1)


@pytest.mark.parametrize("shape", [(5, 64), ("n", "t", 100), (4, 4096)])
def test_neighbours_are_reduced_in_lanes(shape: Shape) -> None:
    reduced("ReduceSum", [-1], shape)
    reduced("ReduceMean", [-1], shape, keepdims=1)


def test_all_numbers_become_one() -> None:
    reduced("ReduceSum", [0, 1], (6, 64))
    reduced("ReduceMax", [1, 2], (3, 5, 64))


def test_a_long_sum_is_made_of_short_ones() -> None:
    """One after the other, numbers of half the last bit of 1 would all be lost beside it."""
    rows = np.full((1024, 64), 2.0**-25, np.float32)
    rows[0] = 1
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    (total,) = compiled(model([node], {"x": rows.shape}, {"axes": np.array([0])}))(rows)
    np.testing.assert_allclose(total, rows.sum(axis=0, dtype=np.float64), rtol=32 * 2.0**-25)
