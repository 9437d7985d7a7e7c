"""The kernel of an ensemble computes what ONNX Runtime does, one row or many, walking or as bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.tir.lowering import pipeline
from forge_pipeline.codegen.trees import kernel as kernels
from forge_pipeline.codegen.trees.ensemble import read
from forge_pipeline.codegen.trees.kernel import ROWS, Kernel, kernel_of
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.target import Target
from tests.support.forests import ML, MODES, Forest, model_of, regressor
from tests.support.sums import assert_close

SIZES = (1, 3, ROWS, 2 * ROWS + 5)
BIT_TABLES = 12
"""Arguments of a kernel that has bits, without the result."""


def made(model: onnx.ModelProto, dtype: str) -> Kernel:
    (node,) = model.graph.node
    return kernel_of(read(node.op_type, {a.name: helper.get_attribute_value(a) for a in node.attribute}, dtype))


def computed(kernel: Kernel, x: Any) -> Any:
    """Return what a kernel computes, compiled for this machine."""
    import tvm

    module = tvm.IRModule({"main": kernel.function.with_attr("global_symbol", "main")})
    function = pipeline.build(module, Target.from_tag("host"))["main"]
    results = []
    for part in x:
        y = tvm.runtime.tensor(np.full((len(part), kernel.targets), 7, kernel.dtype))
        function(*(tvm.runtime.tensor(np.ascontiguousarray(item)) for item in (part, *kernel.tables)), y)
        results.append(y.numpy())
    return results


def check(model: onnx.ModelProto, forest: Forest, *, nan: bool = False) -> Kernel:
    """Compare a model's kernel with ONNX Runtime."""
    kernel = made(model, str(np.dtype(forest.dtype)))
    x = [forest.samples(rows, nan=nan) for rows in SIZES]
    run = Interpreter(model)
    for part, found in zip(x, computed(kernel, x), strict=True):
        assert_close(found, run({"x": part})["y"], within=1e-5)
    return kernel


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_comparisons_of_all_kinds_stand_in_one_tree(dtype: Any) -> None:
    forest = Forest(modes=MODES, missing=True, dtype=dtype, trees=9, leaves=12)
    check(regressor(forest), forest, nan=True)


def test_a_threshold_may_be_infinite_or_no_number() -> None:
    forest = Forest(modes=MODES, missing=True, numbers=[np.inf, -np.inf, np.nan, 3.4e38, 1e-45, -1e-45], trees=9)
    check(regressor(forest), forest, nan=True)


@pytest.mark.every(6)
@pytest.mark.parametrize(
    ("aggregate", "own"), [("SUM", False), ("SUM", True), ("AVERAGE", True), ("MIN", False), ("MAX", True)]
)
def test_leaves_of_several_targets_are_aggregated(aggregate: str, own: bool) -> None:
    forest = Forest(targets=3, own_target=own, trees=8)
    kernel = check(regressor(forest, aggregate_function=aggregate, base_values=[0.5, -1.0, 2.0]), forest)
    assert kernel.tables[0].shape[1] == (1 if own else 3)


def test_a_target_that_no_leaf_gives_to_is_its_base_value() -> None:
    forest = Forest(targets=3, own_target=True, trees=2)
    kernel = made(regressor(forest, aggregate_function="MIN", base_values=[0.5, -1.0, 2.0]), "float32")
    (found,) = computed(kernel, [forest.samples(4)])
    assert found[:, 2].tolist() == [2.0] * 4


def test_trees_of_a_single_leaf_and_of_very_different_depths_stand_together() -> None:
    deep, flat = Forest(leaves=20, chain=True, trees=1), Forest(leaves=1, trees=6, seed=1)
    given, other = deep.attributes(), flat.attributes()
    for name, values in given.items():
        if isinstance(values, list):
            shift = 1 if name.endswith("treeids") else 0
            values += [value + shift if shift else value for value in other[name]]
    check(regressor(replace(deep, trees=0), **given), deep)


@pytest.mark.every(2)
@pytest.mark.parametrize(("dtype", "bits"), [(np.float32, 32), (np.float64, 64)])
def test_trees_with_more_leaves_than_a_word_has_bits_are_several_parts(
    dtype: Any, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "STEP_COST", 1e6)  # whatever bits cost
    forest = Forest(leaves=2 * bits + 3, trees=3, dtype=dtype, modes=MODES[:4], missing=True)
    kernel = check(regressor(forest), forest, nan=True)
    assert len(kernel.tables) == BIT_TABLES - 1
    assert len(kernel.tables[-1]) == 3 * 3


def test_deep_trees_are_walked_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SERIAL_WORK", 0)  # blocks of rows on threads
    forest = Forest(leaves=300, trees=6, numbers=np.random.default_rng(0).standard_normal(50).tolist())
    kernel = check(regressor(forest), forest)
    assert len(kernel.tables) < BIT_TABLES - 1


def test_leaves_reached_by_several_ways_are_walked_to() -> None:
    """Nodes of TreeEnsemble may share successors."""
    attributes = {
        "n_targets": 2, "aggregate_function": 1, "post_transform": 0, "tree_roots": [0, 2, 3],
        "nodes_featureids": [0, 1, 2, 3], "nodes_modes": np.array([0, 6, 6, 2], np.uint8),
        "nodes_splits": np.array([3, 0, 0, 5], np.float32),
        "membership_values": np.array([2, 1, 5, 6, 4, np.nan, 7, 3, np.nan], np.float32),
        "nodes_missing_value_tracks_true": [0, 1, 0, 0],
        "nodes_trueleafs": [0, 1, 1, 1], "nodes_truenodeids": [1, 0, 1, 3],
        "nodes_falseleafs": [1, 1, 1, 1], "nodes_falsenodeids": [2, 1, 2, 3],
        "leaf_targetids": [0, 1, 0, 1], "leaf_weights": np.array([1, 2, 4, 8], np.float32),
    }  # fmt: skip
    tensors = {
        name: numpy_helper.from_array(value, name) if isinstance(value, np.ndarray) else value
        for name, value in attributes.items()
    }
    node = helper.make_node("TreeEnsemble", ["x"], ["y"], domain=ML, **tensors)
    model = model_of([node], {"x": (TensorProto.FLOAT, ("n", 4))}, {"y": TensorProto.FLOAT}, ml=5)
    check(model, Forest(numbers=range(9)), nan=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nodes_truenodeids": [99] * 55}, "a successor that is no node"),
        ({"nodes_values": [1.0]}, "differ in length"),
        ({"nodes_modes": ["BRANCH_ODD"] * 55}, "the mode BRANCH_ODD"),
        ({"target_ids": [4] * 30}, "a weight of no target"),
        ({"aggregate_function": "MEDIAN"}, "the aggregate MEDIAN"),
    ],
)
def test_attributes_that_contradict_each_other_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        made(regressor(Forest(), **change), "float32")


def test_a_node_that_is_its_own_successor_is_refused() -> None:
    attributes = Forest(trees=1).attributes()
    attributes["nodes_truenodeids"][1 if attributes["nodes_modes"][1] != "LEAF" else 2] = 0
    with pytest.raises(ValueError, match="its own successor"):
        made(regressor(Forest(), **attributes), "float32")
