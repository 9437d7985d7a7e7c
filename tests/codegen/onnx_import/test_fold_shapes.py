"""Arithmetic on constants while a model is prepared: done where it is small, and never begun where it is not."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.onnx_import.fold_shapes import fold_shapes

LONG = np.arange(60_000, dtype=np.float32)


def folded(operator: str, *values: Any, **attributes: Any) -> onnx.GraphProto:
    names = [f"c{index}" for index in range(len(values))]
    nodes = [helper.make_node(operator, names, ["made"], **attributes), helper.make_node("Identity", ["made"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "graph",
        [],
        [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in zip(names, values, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    fold_shapes(model)
    return model.graph


@pytest.mark.parametrize(
    ("operator", "values", "attributes", "expected"),
    [
        ("Add", (np.array([1, 2]), np.array(3)), {}, [4, 5]),
        ("Range", (np.array(2), np.array(5), np.array(1)), {}, [2, 3, 4]),
        ("Concat", (np.array([1]), np.array([2])), {"axis": 0}, [1, 2]),
        ("NonZero", (np.array([0, 4, 0, 1]),), {}, [[1, 3]]),
    ],
)
def test_small_results_take_the_place_of_their_node(
    operator: str, values: tuple[Any, ...], attributes: dict[str, Any], expected: list[Any]
) -> None:
    graph = folded(operator, *values, **attributes)
    assert [node.op_type for node in graph.node] == ["Identity"]
    np.testing.assert_array_equal(numpy_helper.to_array(graph.initializer[-1]), expected)


@pytest.mark.parametrize(
    ("operator", "values"),
    [
        ("ConstantOfShape", (np.array([1 << 30]),)),
        ("Expand", (np.zeros(1, np.float32), np.array([1 << 15, 1 << 15]))),
        ("Range", (np.array(0), np.array(1 << 30), np.array(1))),
        ("Tile", (LONG, np.array([1 << 14]))),
        ("Add", (LONG[:20_000, None], LONG[None])),
    ],
)
def test_a_result_of_gigabytes_is_not_computed_to_find_out_that_it_is_large(
    operator: str, values: tuple[Any, ...]
) -> None:
    tracemalloc.start()
    try:
        graph = folded(operator, *values)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [node.op_type for node in graph.node] == [operator, "Identity"]
    assert peak < 20e6
