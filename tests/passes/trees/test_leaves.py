"""What follows a tree is in its leaves, and a sum of trees is one ensemble: the outputs are what they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from forge_pipeline.passes import PASSES, apply, plan
from forge_pipeline.passes.verification.exact import exact_interpreter

ML = "ai.onnx.ml"
ROWS = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
WEIGHTS: Mapping[str, Any] = {
    "columns": np.int64([4, 0, 2]),
    "table": np.float32([1, 8, 3, 0.5, 2]),
    "column": np.int64([-1, 1]),
    "two": np.float32([2]),
    "row": np.float32([[1, 2, 3]]),
}


def tree(rows: str, result: str, leaves: Sequence[float] = (0, 1, 2, 3), **changes: Any) -> NodeProto:
    """Three comparisons and four leaves."""
    return helper.make_node(
        "TreeEnsembleRegressor",
        [rows],
        [result],
        domain=ML,
        **{
            "nodes_treeids": [0] * 7, "nodes_nodeids": list(range(7)), "nodes_featureids": [0, 1, 2, 0, 0, 0, 0],
            "nodes_modes": ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_LEQ", *["LEAF"] * 4],
            "nodes_values": [0.1, -0.2, 0.3, 0.0, 0.0, 0.0, 0.0], "nodes_truenodeids": [1, 3, 5, 0, 0, 0, 0],
            "nodes_falsenodeids": [2, 4, 6, 0, 0, 0, 0], "target_treeids": [0] * 4, "target_nodeids": [3, 4, 5, 6],
            "target_ids": [0] * 4, "target_weights": [float(leaf) for leaf in leaves], "n_targets": 1, **changes,
        },
    )  # fmt: skip


def looked_up(result: str, name: str) -> list[NodeProto]:
    """The number that a table has for a leaf, and a function of that."""
    return [
        helper.make_node("Cast", [result], [f"{name}_at"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", f"{name}_at"], [f"{name}_found"]),
        helper.make_node("Reshape", [f"{name}_found", "column"], [f"{name}_one"]),
        helper.make_node("Log", [f"{name}_one"], [f"{name}_log"]),
        helper.make_node("Mul", [f"{name}_log", "two"], [f"{name}_twice"]),
        helper.make_node("Add", [f"{name}_twice", f"{name}_one"], [name]),
    ]


def model(*nodes: NodeProto, outputs: Sequence[str] = ("y",)) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "forest",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 5])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"{name}_0", f"{name}_1"]) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in WEIGHTS.items()],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(ML, 3)], ir_version=9
    )


def changed(source: onnx.ModelProto, *names: str) -> Counter[str]:
    """Run passes, compare the outputs, and return the operators that are left."""
    made = apply(source, plan([*names, "remove-dead"], PASSES, where="passes"), None).model
    expected = exact_interpreter(source)({"x": ROWS})
    found = exact_interpreter(made)({"x": ROWS})
    for value in source.graph.output:
        np.testing.assert_allclose(found[value.name], expected[value.name], rtol=1e-6)
    return Counter(node.op_type for node in made.graph.node)


def forest(sums: str) -> onnx.ModelProto:
    """Trees of some columns each, as scikit-learn's IsolationForest is exported."""
    nodes: list[NodeProto] = []
    for at in range(3):
        nodes += [
            helper.make_node("Gather", ["x", "columns"], [f"rows{at}"], axis=1),
            tree(f"rows{at}", f"leaf{at}", np.roll([0, 1, 2, 4], at).tolist(), base_values=[0.0]),
            *looked_up(f"leaf{at}", f"score{at}"),
        ]
    if sums == "Sum":
        return model(*nodes, helper.make_node("Sum", ["score0", "score1", "score2"], ["y"]))
    nodes.append(helper.make_node("Add", ["score0", "score1"], ["first"]))
    return model(*nodes, helper.make_node("Add", ["score2", "first"], ["y"]))


@pytest.mark.parametrize("sums", ["Sum", "Add"])
def test_a_forest_is_one_ensemble(sums: str) -> None:
    source = forest(sums)
    assert changed(source, "fold-leaves", "merge-ensembles") == {"TreeEnsembleRegressor": 1, "Identity": 1}


@pytest.mark.parametrize("way", ["ReduceMean", "ReduceSum"])
def test_trees_that_are_stacked_to_be_averaged_are_one_ensemble(way: str) -> None:
    nodes: list[NodeProto] = []
    for at in range(3):
        nodes.append(tree("x", f"leaf{at}", np.roll([0.5, 1, 2, 4], at).tolist(), base_values=[0.25]))
        nodes.append(helper.make_node("Reshape", [f"leaf{at}", "stacked"], [f"part{at}"]))
    nodes.append(helper.make_node("Concat", ["part0", "part1", "part2"], ["stack"], axis=0))
    source = model(*nodes, helper.make_node(way, ["stack", "first"], ["y"], keepdims=0))
    source.graph.initializer.append(numpy_helper.from_array(np.int64([1, -1, 1]), "stacked"))
    source.graph.initializer.append(numpy_helper.from_array(np.int64([0]), "first"))
    assert changed(source, "merge-ensembles", "remove-dead", "merge-ensembles") == {
        "TreeEnsembleRegressor": 1,
        "Identity": 1,
    }


def test_an_ensemble_that_adds_trees_up_has_no_leaves_to_choose_from() -> None:
    lists = ("nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_modes", "nodes_values", "nodes_truenodeids",
             "nodes_falsenodeids", "target_nodeids", "target_ids", "target_weights")  # fmt: skip
    one = {entry.name: helper.get_attribute_value(entry) for entry in tree("x", "y").attribute}
    twice = {name: list(one[name]) * 2 for name in lists}
    twice |= {"nodes_treeids": [0] * 7 + [1] * 7, "target_treeids": [0] * 4 + [1] * 4}
    source = model(tree("x", "sum", **twice), helper.make_node("Exp", ["sum"], ["y"]))
    assert changed(source, "fold-leaves")["Exp"] == 1


@pytest.mark.parametrize(
    ("nodes", "outputs", "left"),
    [
        pytest.param([helper.make_node("Exp", ["leaf"], ["y"])], ["y", "leaf"], "Exp", id="read elsewhere"),
        pytest.param([helper.make_node("Add", ["leaf", "row"], ["y"])], ["y"], "Add", id="a row of numbers"),
        pytest.param([helper.make_node("CumSum", ["leaf", "axis"], ["y"])], ["y"], "CumSum", id="all rows"),
        pytest.param(
            [helper.make_node("ReduceMax", ["x"], ["m"]), helper.make_node("Mul", ["leaf", "m"], ["y"])],
            ["y"],
            "Mul",
            id="of the input",
        ),
    ],
)
def test_what_is_no_function_of_the_leaf_stays(nodes: list[NodeProto], outputs: list[str], left: str) -> None:
    source = model(tree("x", "leaf"), *nodes, outputs=outputs)
    source.graph.initializer.append(numpy_helper.from_array(np.int64(0), "axis"))
    assert changed(source, "fold-leaves")[left] == 1


@pytest.mark.parametrize("post_transform", ["LOGISTIC", "SOFTMAX"])
def test_a_transform_behind_the_leaves_stays(post_transform: str) -> None:
    source = model(tree("x", "leaf", post_transform=post_transform), helper.make_node("Exp", ["leaf"], ["y"]))
    made = apply(source, plan(["fold-leaves"], PASSES, where="passes"), None).model
    assert [node.op_type for node in made.graph.node] == ["TreeEnsembleRegressor", "Exp"]


def test_trees_of_other_rows_and_those_that_are_read_twice_are_not_merged() -> None:
    source = model(
        helper.make_node("Neg", ["x"], ["minus"]),
        tree("x", "one"),
        tree("minus", "other"),
        helper.make_node("Add", ["one", "other"], ["sum"]),
        tree("x", "again"),
        helper.make_node("Add", ["sum", "again"], ["y"]),
        helper.make_node("Exp", ["again"], ["z"]),
        outputs=["y", "z"],
    )
    assert changed(source, "merge-ensembles")["TreeEnsembleRegressor"] == 3
