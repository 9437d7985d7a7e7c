"""Products by how many rows they have: one, some that no tile divides, and those of sequences beside each other."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from tvm import tirx

from forge_pipeline.codegen.lowering import lower
from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
from forge_pipeline.codegen.tir import rewriting
from forge_pipeline.target import Target
from tests.support.tiled import TILED, Shape, assert_same, compiled, kernels_of, model


@pytest.mark.every(8)
@pytest.mark.parametrize("columns", ["columns", 16, 17, 129])
@pytest.mark.parametrize("heads", [(2, 3), (1, 3)])
def test_one_row_by_a_matrix_that_is_no_constant(columns: int | str, heads: tuple[int, int]) -> None:
    nodes = [helper.make_node("MatMul", ["q", "k"], ["p"]), helper.make_node("Tanh", ["p"], ["y"])]
    source = model(nodes, {"q": (2, 3, 1, 24), "k": (*heads, 24, columns)})
    sizes = [{"columns": size} for size in (0, 1, 3, 15, 16, 17, 31, 64, 257)] if columns == "columns" else [{}]
    assert_same(source, sizes, terms=24)
    assert not any("crop" in name for name in kernels_of(compiled(source))), "its columns are packed"


@pytest.mark.every(6)
@pytest.mark.parametrize("leading", [(2, 5, 1), (3, 7), ("n", 5, 1), ("n", "m")])
def test_rows_of_batches_by_one_matrix_that_is_no_constant(leading: Shape) -> None:
    nodes = [helper.make_node("MatMul", ["x", "m"], ["p"]), helper.make_node("Tanh", ["p"], ["y"])]
    source = model(nodes, {"x": (*leading, 24), "m": (24, 33)})
    sizes = [{"n": n, "m": m} for n, m in ((1, 1), (2, 3), (0, 4), (9, 5))]
    assert_same(source, sizes if "n" in leading else [{}], terms=24)
    assert any("crop" in name for name in kernels_of(compiled(source))), "each row reads the matrix by itself"


def dense(*rows: int | str) -> onnx.ModelProto:
    """Return a model of rows times weights, whose results go through a function that needs registers."""
    rng = np.random.default_rng(1)
    weights = {"w": rng.standard_normal((40, 96)).astype(np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Erf", ["p"], ["y"])]
    return model(nodes, {"x": (*rows, 40)}, weights)


@pytest.mark.parametrize("rows", [(1, 197), (2, 49), (26, 1), (3, 2, 31), (5, 1, 1), (2,), (101,)])
def test_any_known_number_of_rows_times_weights(rows: Shape) -> None:
    assert_same(dense(*rows), [{}], terms=40)


@pytest.mark.parametrize("rows", [(1, 197), (26, 1), (101,)])
def test_rows_share_a_tile_in_which_nothing_is_tested(rows: Shape) -> None:
    """A test of whether there is a row has LLVM keep sums in memory; a row by itself reads all weights alone."""
    module = lower(import_model(prepare(dense(*rows))), Target.from_tag("x86-64/v4"), TILED).module
    (kernel,) = (
        function
        for name, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc) and "dense" in name.name_hint
    )
    sums = [block for block in rewriting.realizes(kernel.body) if block.block.name_hint.startswith("product_")]
    assert sums
    assert all(str(block.predicate) == "T.bool(True)" for block in sums)
    assert max(int(loop.extent) for loop in rewriting.loops(kernel.body) if loop.kind == tirx.ForKind.UNROLLED) > 4
