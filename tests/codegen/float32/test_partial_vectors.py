"""Products of two activations whose columns fill no vectors: as ONNX Runtime has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target
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


@pytest.mark.parametrize("shape", [(1, 4, 67, 65), (1, 17, 63, 63), (1, 30, 31, 9), (2, 1027)])
def test_numbers_that_fill_no_vectors_are_walked_along_memory(shape: tuple[int, ...], tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    source = model(nodes, {"a": shape, "b": shape})
    assert_same(source, [{}], terms=2)
    options = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
    build(source, Target.from_tag("x86-64/v3"), options, dump=tmp_path)
    (rewritten,) = tmp_path.glob("*-rewrite.txt")
    text = rewritten.read_text("utf-8")
    assert "_fused_1" not in text, "parts of all numbers, which end anywhere: places are found by division"
    assert "T.vectorized(" in text or shape[-1] < 32


@pytest.mark.parametrize("channels", [32, 30])
def test_pixels_in_one_row_are_moved_in_vectors_where_their_steps_are_even(channels: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 3, 1]),
        helper.make_node("Reshape", ["t", "n"], ["y"]),
    ]
    source = model(nodes, {"x": (1, channels, 28, 24)}, {"n": np.array([-1])})
    assert_same(source, [{}], terms=1)
    options = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
    build(source, Target.from_tag("x86-64/v3"), options, dump=tmp_path)
    (rewritten,) = tmp_path.glob("*-rewrite.txt")
    assert ("T.vectorized(" in rewritten.read_text("utf-8")) == (channels == 32)
