"""Products of two activations whose columns fill no vectors: as ONNX Runtime has them."""

from __future__ import annotations

import pytest
from onnx import helper

from tests.support.tiled import assert_same, compiled, kernels_of, model


@pytest.mark.every(3)
@pytest.mark.parametrize("columns", [1, 3, 9, 15, 33, 197])
def test_a_product_whose_columns_fill_no_vectors(columns: int) -> None:
    nodes = [helper.make_node("MatMul", ["a", "b"], ["p"]), helper.make_node("Tanh", ["p"], ["y"])]
    source = model(nodes, {"a": (2, 3, 21, 24), "b": (2, 3, 24, columns)})
    assert_same(source, [{}], terms=24)
    if columns > 32:
        assert any("crop" in name for name in kernels_of(compiled(source))), "its columns are not packed"


@pytest.mark.parametrize("columns", [24, 100, 197])
@pytest.mark.parametrize(("left", "right"), [((2, 3, 40), (1, 3)), ((1, 33), (2, 3)), ((100,), ())])
def test_many_rows_are_multiplied_by_columns_that_their_kernel_packs(
    left: tuple[int, ...], right: tuple[int, ...], columns: int
) -> None:
    nodes = [helper.make_node("MatMul", ["a", "b"], ["p"]), helper.make_node("Tanh", ["p"], ["y"])]
    source = model(nodes, {"a": (*left, 24), "b": (*right, 24, columns)})
    assert_same(source, [{}], terms=24)
    assert not any("crop" in name for name in kernels_of(compiled(source)))
