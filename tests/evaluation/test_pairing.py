"""Outputs with as many rows as a model finds are compared row by row with the nearest one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from forge_pipeline.errors import VerificationError
from forge_pipeline.evaluation.comparison import COMPILED, FLOAT, QUANTIZED, compare
from forge_pipeline.evaluation.pairing import paired
from forge_pipeline.evaluation.scores import factory

ROWS = np.array([[1.0, 1.0], [5.0, 5.0], [9.0, 0.0]], np.float32)
FEEDS = [{"x": np.zeros((1, 1), np.float32)}]


def test_rows_in_another_order_are_those_they_are() -> None:
    own, other = paired({"y": ROWS}, {"y": ROWS[[2, 0, 1]] + 0.1}, {"y": 0})
    assert own["y"].tolist() == ROWS.tolist()
    assert np.allclose(other["y"], ROWS + 0.1)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_row_that_one_side_alone_has_is_compared_with_zeros(axis: int) -> None:
    few, many = (np.moveaxis(rows, 0, axis) for rows in (ROWS[:2], ROWS))
    own, other = paired({"y": few}, {"y": many}, {"y": axis})
    assert np.moveaxis(own["y"], axis, 0).tolist() == [[1, 1], [5, 5], [0, 0]]
    assert other["y"].tolist() == many.tolist()
    own, other = paired({"y": many}, {"y": few}, {"y": axis})
    assert own["y"].tolist() == many.tolist()
    assert np.moveaxis(other["y"], axis, 0).tolist() == [[1, 1], [5, 5], [0, 0]]


def test_nothing_found_is_all_zeros() -> None:
    own, other = paired({"y": ROWS}, {"y": ROWS[:0]}, {"y": 0})
    assert own["y"].tolist() == ROWS.tolist()
    assert not other["y"].any()
    assert paired({"y": ROWS[:0]}, {"y": ROWS[:0]}, {"y": 0})[1]["y"].shape == (0, 2)


def models(quantized: np.ndarray) -> dict[str, Callable[[Any], Mapping[str, Any]]]:
    return {FLOAT: lambda _: {"y": ROWS}, QUANTIZED: lambda _: {"y": quantized}, COMPILED: lambda _: {"y": quantized}}


def test_scores_and_noise_are_those_of_pairs() -> None:
    found = compare(models(ROWS[[1, 0]]), ["y"], FEEDS, None, factory("mae"), None, {"y": 0})
    assert found.scores[QUANTIZED] == pytest.approx(9 / 6)
    assert found.noise[QUANTIZED]["y"].max_abs == 9
    assert found.noise[COMPILED]["y"].ratio == 0


@pytest.mark.parametrize("counted", [{}, {"y": 1}])
def test_another_shape_where_no_data_decides_it_is_refused(counted: dict[str, int]) -> None:
    with pytest.raises(VerificationError, match=r"\[3, 2\]"):
        compare(models(ROWS[:2]), ["y"], FEEDS, None, factory("mae"), None, counted)
