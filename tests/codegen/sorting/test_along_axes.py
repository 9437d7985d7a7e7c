"""Running sums and scattering, as ONNX Runtime computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forge_pipeline.codegen.sorting.cumulative import cumulative
from forge_pipeline.codegen.sorting.extreme import extreme
from forge_pipeline.codegen.sorting.rows import extents_of
from forge_pipeline.codegen.sorting.scatter import REDUCTIONS, scatter_elements, scatter_nd
from tests.support.kernels import of_onnx_runtime, run
from tests.support.sums import assert_close

RANDOM = np.random.default_rng(0)
DATA = RANDOM.standard_normal((3, 4, 5)).astype(np.float32)


@pytest.mark.every(8)
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_running_sums_are_those_of_onnx_runtime(exclusive: int, reverse: int, dtype: str) -> None:
    data = (DATA * 10).astype(dtype)
    found = run(
        lambda builder, x: [
            cumulative(builder, x, axis=axis, exclusive=bool(exclusive), reverse=bool(reverse)) for axis in range(3)
        ],
        [data],
    )
    for axis, have in enumerate(found):
        (want,) = of_onnx_runtime("CumSum", [data, np.array(axis)], exclusive=exclusive, reverse=reverse)
        assert_close(have, want, within=1e-5)


def test_a_running_product_is_one_before_its_first_factor() -> None:
    (found,) = run(lambda builder, x: [cumulative(builder, x, axis=0, product=True, exclusive=True)], [DATA])
    np.testing.assert_allclose(found[0], 1)
    np.testing.assert_allclose(found[1:], np.cumprod(DATA, axis=0)[:-1], rtol=1e-6)


@pytest.mark.every(6)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_elements_are_scattered_as_onnx_runtime_does_in_order(reduction: str) -> None:
    updates = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)
    for axis in range(3):
        places = RANDOM.integers(-DATA.shape[axis], DATA.shape[axis], updates.shape)
        (found,) = run(
            lambda builder, *given, axis=axis: [scatter_elements(builder, *given, axis=axis, reduction=reduction)],
            [DATA, places, updates],
        )
        (want,) = of_onnx_runtime("ScatterElements", [DATA, places, updates], axis=axis, reduction=reduction)
        np.testing.assert_allclose(found, want, rtol=1e-6)


@pytest.mark.parametrize("axis", range(3))
def test_rows_are_scattered_whole_where_their_places_are_repeated(axis: int) -> None:
    from tvm.relax import op

    rows = [2 if at == axis else extent for at, extent in enumerate(DATA.shape)]
    places = RANDOM.integers(-2, 2, [2 if at == axis else 1 for at in range(3)])
    updates = RANDOM.standard_normal(rows).astype(np.float32)

    def scattered(builder: Any, x: Any, p: Any, u: Any) -> list[Any]:
        repeated = builder.emit(op.broadcast_to(p, extents_of(u)))
        return [scatter_elements(builder, x, repeated, u, axis=axis, reduction="add")]

    (found,) = run(scattered, [DATA, places, updates], is_open=False)
    (want,) = of_onnx_runtime(
        "ScatterElements", [DATA, np.broadcast_to(places, rows).copy(), updates], axis=axis, reduction="add"
    )
    np.testing.assert_allclose(found, want, rtol=1e-6)


@pytest.mark.every(10)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_slices_are_scattered_as_onnx_runtime_does(reduction: str, depth: int) -> None:
    places = np.stack([RANDOM.integers(-extent, extent, (6, 2)) for extent in DATA.shape[:depth]], -1)
    updates = RANDOM.standard_normal((6, 2, *DATA.shape[depth:])).astype(np.float32)
    (found,) = run(
        lambda builder, *given: [scatter_nd(builder, *given, depth=depth, reduction=reduction)],
        [DATA, places, updates],
        is_open=False,
    )
    (want,) = of_onnx_runtime("ScatterND", [DATA, places, updates], reduction=reduction)
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_a_place_outside_of_the_tensor_is_passed_over() -> None:
    places, updates = np.array([[0], [9], [-9]]), np.ones((3, 2), np.float32)
    data = np.zeros((2, 2), np.float32)
    results = run(
        lambda builder, x, p, u: [
            scatter_nd(builder, x, p, u, depth=1),
            scatter_elements(builder, x, p, builder.emit(_first_column(u)), axis=0),
        ],
        [data, places, updates],
        is_open=False,
    )
    np.testing.assert_array_equal(results, [[[1, 1], [0, 0]], [[1, 0], [0, 0]]])


def _first_column(value: object) -> object:
    from tvm.relax import op

    assert len(extents_of(value)) == 2
    return op.strided_slice(value, [1], [0], [1])


@pytest.mark.every(2)
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums_of_rows_that_lie_side_by_side_are_those_of_each(reverse: bool) -> None:
    data = RANDOM.standard_normal((2, 7, 37)).astype(np.float32)
    for is_open in (True, False):
        (found,) = run(lambda builder, x: [cumulative(builder, x, axis=1, reverse=reverse)], [data], is_open=is_open)
        summed = data[:, ::-1].cumsum(1)[:, ::-1] if reverse else data.cumsum(1)
        assert_close(found, summed, within=1e-5)


@pytest.mark.every(8)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("shape", [(5, 3), (3, 61), (3, 5, 37)])
def test_the_place_of_an_extreme_is_the_first_or_the_last_of_equal_ones(shape: tuple[int, ...], dtype: str) -> None:
    data = RANDOM.integers(0, 4, shape).astype(dtype)
    if dtype == "float32":
        data[0, :-1] = np.nan  # never chosen before a number
    numbers = np.nan_to_num(data.astype(np.float64), nan=-1)
    for axis in range(len(shape)):
        places = np.arange(shape[axis]).reshape([-1 if at == axis else 1 for at in range(len(shape))])
        is_greatest = numbers == numbers.max(axis, keepdims=True)
        first = np.where(is_greatest, places, shape[axis]).min(axis, keepdims=True)
        last = np.where(is_greatest, places, -1).max(axis, keepdims=True)
        for is_open in (True, False):
            found = run(
                lambda builder, x, axis=axis: [
                    extreme(builder, x, axis=axis, largest=True, last=is_last) for is_last in (False, True)
                ],
                [data],
                is_open=is_open,
            )
            np.testing.assert_array_equal(found[0], first)
            np.testing.assert_array_equal(found[1], last)
