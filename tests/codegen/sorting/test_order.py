"""Sorting, the k first, extremes: as numpy's stable sort and ONNX Runtime have them."""

from __future__ import annotations

import numpy as np
import pytest

from forge_pipeline.codegen.sorting.extreme import extreme
from forge_pipeline.codegen.sorting.merge_sort import sort
from forge_pipeline.codegen.sorting.top_k import top_k
from tests.support.kernels import of_onnx_runtime, run

RANDOM = np.random.default_rng(0)


@pytest.mark.every(8)
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize(("shape", "axis"), [((5,), 0), ((3, 100, 4), 1), ((2, 3, 1000), -1), ((17, 0), 0)])
def test_a_sort_is_stable_along_any_axis(shape: tuple[int, ...], axis: int, is_open: bool) -> None:
    data = RANDOM.integers(0, 30, shape).astype(np.float32)
    up, ups, down, downs = run(
        lambda builder, x: [
            *sort(builder, x, axis=axis, descending=False),
            *sort(builder, x, axis=axis, descending=True),
        ],
        [data],
        is_open=is_open,
    )
    for values, places, keys in ((up, ups, data), (down, downs, -data)):
        wanted = np.argsort(keys, axis=axis, kind="stable")
        np.testing.assert_array_equal(places, wanted)
        np.testing.assert_array_equal(values, np.take_along_axis(data, wanted, axis))


@pytest.mark.every(8)
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "int64"])
@pytest.mark.parametrize("is_open", [True, False])
def test_the_first_k_are_those_of_onnx_runtime(dtype: str, is_open: bool) -> None:
    data = RANDOM.integers(0, 30, (3, 100, 4)).astype(dtype)
    cases = [(7, 0), (7, 1), (60, 1)]
    found = run(
        lambda builder, x: [
            value for count, largest in cases for value in top_k(builder, x, count, axis=1, largest=bool(largest))
        ],
        [data],
        is_open=is_open,
    )
    wanted = [
        array
        for count, largest in cases
        for array in of_onnx_runtime("TopK", [data, np.array([count])], 2, axis=1, largest=largest)
    ]
    for want, have in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(have, want)


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_what_onnx_runtime_cannot_order_is_ordered_too(dtype: str) -> None:
    data = np.array([3, np.iinfo(dtype).max, 0, 7], dtype)
    values, places = run(lambda builder, x: top_k(builder, x, 2, axis=0, largest=True), [data])
    assert values.tolist() == [np.iinfo(dtype).max, 7]
    assert places.tolist() == [1, 3]


@pytest.mark.long
@pytest.mark.parametrize("is_open", [True, False])
def test_no_nan_is_chosen_before_a_number(is_open: bool) -> None:
    data = np.array([np.nan, 3, np.nan, 1, 2], np.float32)
    cases = [(count, largest) for count in (0, 1, 3, 5) for largest in (False, True)]
    found = run(
        lambda builder, x: [top_k(builder, x, count, axis=0, largest=largest)[1] for count, largest in cases],
        [data],
        is_open=is_open,
    )
    for (count, largest), places in zip(cases, found, strict=True):
        assert places.tolist() == ([1, 4, 3, 0, 2] if largest else [3, 4, 1, 0, 2])[:count]


@pytest.mark.every(6)
@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_an_extreme_is_the_first_or_the_last_of_equal_ones(operator: str, last: int) -> None:
    data = RANDOM.integers(0, 3, (3, 8, 5)).astype(np.float32)
    for axis in range(3):
        (wanted,) = of_onnx_runtime(operator, [data], axis=axis, select_last_index=last)
        (found,) = run(
            lambda builder, x, axis=axis: [
                extreme(builder, x, axis=axis, largest=operator == "ArgMax", last=bool(last))
            ],
            [data],
        )
        np.testing.assert_array_equal(found, wanted)
