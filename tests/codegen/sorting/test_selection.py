"""What selects by values: NonZero, Unique, NonMaxSuppression, each with the count of what it found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forge_pipeline.codegen.sorting.non_max_suppression import non_max_suppression
from forge_pipeline.codegen.sorting.positions import positions
from forge_pipeline.codegen.sorting.rows import extents_of, size
from forge_pipeline.codegen.sorting.unique import unique
from tests.support.kernels import of_onnx_runtime, run

RANDOM = np.random.default_rng(0)


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", ["bool", "float32", "uint8"])
@pytest.mark.parametrize("shape", [(), (7,), (3, 4, 5)])
def test_positions_are_those_that_are_not_zero(dtype: str, shape: tuple[int, ...]) -> None:
    data = np.asarray(RANDOM.integers(0, 2, shape)).astype(dtype)
    places, count = run(lambda builder, x: positions(builder, x, size(extents_of(x))), [data])
    np.testing.assert_array_equal(places[:count], np.flatnonzero(data))


@pytest.mark.every(10)
@pytest.mark.parametrize("ordered", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize(("shape", "axis"), [((4, 5, 6), None), ((30, 2), 0), ((2, 30, 1), 1), ((2, 2, 9), -1)])
def test_unique_has_all_four_outputs_of_onnx_runtime(
    shape: tuple[int, ...], axis: int | None, dtype: str, ordered: int
) -> None:
    data = RANDOM.integers(0, 4, shape).astype(dtype)
    along: dict[str, Any] = {} if axis is None else {"axis": axis}
    _, first, inverse, counts = of_onnx_runtime("Unique", [data], 4, sorted=ordered, **along)
    found = run(
        lambda builder, x: unique(
            builder,
            x,
            size(extents_of(x)) if axis is None else extents_of(x)[axis],
            axis=axis,
            ordered=bool(ordered),
        ),
        [data],
    )
    assert found[3] == len(counts)
    np.testing.assert_array_equal(found[0][: len(counts)], first)
    np.testing.assert_array_equal(found[1], inverse)
    np.testing.assert_array_equal(found[2][: len(counts)], counts)


@pytest.mark.every(8)
@pytest.mark.parametrize("is_centered", [0, 1])
@pytest.mark.parametrize(("most", "overlap", "least"), [(3, 0.3, 0.2), (100, 0.5, -1.0), (0, 0.5, 0.0)])
def test_the_boxes_that_are_kept_are_those_of_onnx_runtime(
    most: int, overlap: float, least: float, is_centered: int
) -> None:
    boxes = RANDOM.random((2, 50, 4)).astype(np.float32)
    scores = RANDOM.random((2, 3, 50)).round(1).astype(np.float32)  # many are equal
    limits = [np.array([most]), np.array([overlap], np.float32), np.array([least], np.float32)]
    (wanted,) = of_onnx_runtime("NonMaxSuppression", [boxes, scores, *limits], center_point_box=is_centered)
    selected, count = run(
        lambda builder, b, s, *rest: non_max_suppression(
            builder, b, s, rest, size(extents_of(s)), is_centered=bool(is_centered)
        ),
        [boxes, scores, *limits],
    )
    np.testing.assert_array_equal(selected[:count], wanted)


def test_a_box_that_overlaps_by_exactly_the_threshold_stays() -> None:
    boxes = np.array([[[0, 0, 1, 1], [0, 0.5, 1, 1], [0, 0, 1, 0.75]]], np.float32)
    scores = np.array([[[0.9, 0.8, 0.7]]], np.float32)
    limits = [np.array([9]), np.array([0.5], np.float32), np.array([0], np.float32)]
    selected, count = run(
        lambda builder, b, s, *rest: non_max_suppression(builder, b, s, rest, 3, is_centered=False),
        [boxes, scores, *limits],
    )
    assert selected[:count].tolist() == [[0, 0, 0], [0, 0, 1]]
