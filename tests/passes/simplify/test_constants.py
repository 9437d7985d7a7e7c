"""Constant folding: what is computed, what is left alone, and how large it may get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

INT64 = TensorProto.INT64


def test_chains_of_constants_are_computed_level_by_level(model: Any, run_passes: Any, operators: Any) -> None:
    nodes = [
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("Exp", ["two"], ["e"]),
        helper.make_node("Expand", ["e", "shape"], ["wide"]),
        helper.make_node("Transpose", ["wide"], ["turned"]),
        helper.make_node("Mul", ["x", "turned"], ["y"]),
    ]
    made = model(nodes, {"x": [3, 2]}, ["y"], {"shape": np.array([2, 3])})
    assert operators(run_passes(made, "fold-constants").model) == ["Mul"]


@pytest.mark.parametrize(
    ("op", "constants"),
    [
        ("ConstantOfShape", {"shape": np.array([10**6, 10**6])}),
        ("Expand", {"one": np.float32(1), "shape": np.array([10**6, 10**6])}),
        ("Tile", {"one": np.ones((1, 1), np.float32), "shape": np.array([10**6, 10**6])}),
        ("Range", {"start": np.int64(0), "end": np.int64(10**12), "step": np.int64(1)}),
    ],
)
def test_what_would_blow_up_is_never_computed(
    op: str, constants: dict[str, Any], model: Any, run_passes: Any, operators: Any
) -> None:
    nodes = [
        helper.make_node(op, list(constants), ["big"]),
        helper.make_node("Shape", ["big"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Add", ["x", "n"], ["y"]),
    ]
    made = model(nodes, {"x": (INT64, [2])}, ["y"], constants | {"zero": np.int64(0)})
    made.graph.node[0].name = "big"
    from forge_pipeline.passes import PASSES, apply, plan

    outcome = apply(made, plan(["fold-constants"], PASSES, where=""), None)
    assert op in operators(outcome.model)


def test_the_limit_is_what_the_option_says(model: Any, run_passes: Any, operators: Any) -> None:
    nodes = [helper.make_node("Expand", ["k", "shape"], ["wide"]), helper.make_node("Add", ["x", "wide"], ["y"])]
    made = model(nodes, {"x": [16, 16]}, ["y"], {"k": np.float32(2), "shape": np.array([16, 16])})
    assert operators(run_passes(made, {"fold-constants": {"max_bytes": 1023}}).model) == ["Expand", "Add"]
    assert operators(run_passes(made, {"fold-constants": {"max_bytes": 1024}}).model) == ["Add"]


@pytest.mark.parametrize("op", ["RandomNormal", "RandomUniform"])
def test_random_values_stay_random(op: str, model: Any, run_passes: Any, operators: Any) -> None:
    nodes = [helper.make_node(op, [], ["r"], shape=[2]), helper.make_node("Add", ["x", "r"], ["y"])]
    assert operators(run_passes(model(nodes, {"x": [2]}, ["y"]), "fold-constants").model) == [op, "Add"]


def test_a_weight_that_is_stored_in_integers_becomes_float(model: Any, run_passes: Any, operators: Any) -> None:
    constants = {"w": np.arange(-6, 6, dtype=np.int8).reshape(4, 3), "s": np.float32(0.1), "z": np.int8(1)}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"]),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    outcome = run_passes(model(nodes, {"x": [2, 4]}, ["y"], constants), "fold-constants", "remove-dead")
    assert operators(outcome.model) == ["MatMul"]
    assert outcome.model.graph.initializer[0].data_type == TensorProto.FLOAT


def test_a_transposed_weight_beside_quantized_activations_stays_in_integers(
    model: Any, run_passes: Any, operators: Any
) -> None:
    """PyTorch's exporter writes a quantized Linear so."""
    constants = {"w": np.ones((3, 4), np.int8), "s": np.float32(0.1), "z": np.int8(0)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"]),
        helper.make_node("Transpose", ["f"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["a", "t"], ["y"]),
    ]
    made = model(nodes, {"x": [2, 4]}, ["y"], constants)
    assert operators(run_passes(made, "fold-constants", "remove-dead").model).count("DequantizeLinear") == 2


def test_a_weight_beside_quantized_activations_stays_in_integers(model: Any, run_passes: Any, operators: Any) -> None:
    constants = {"w": np.ones((4, 3), np.int8), "s": np.float32(0.1), "z": np.int8(0)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"]),
        helper.make_node("MatMul", ["a", "f"], ["y"]),
    ]
    made = model(nodes, {"x": [2, 4]}, ["y"], constants)
    expected = ["QuantizeLinear", "DequantizeLinear", "DequantizeLinear", "MatMul"]
    assert operators(run_passes(made, "fold-constants", "remove-dead").model) == expected


def test_an_output_that_is_constant_is_still_computed_by_a_node(model: Any, run_passes: Any, operators: Any) -> None:
    nodes = [helper.make_node("Add", ["k", "k"], ["c"]), helper.make_node("Relu", ["x"], ["y"])]
    made = model(nodes, {"x": [2]}, ["c", "y"], {"k": np.ones(2, np.float32)})
    assert operators(run_passes(made, "fold-constants").model) == ["Add", "Relu"]


def test_initializers_that_may_be_overridden_are_no_constants_until_they_are_no_inputs(
    model: Any, run_passes: Any, operators: Any
) -> None:
    nodes = [helper.make_node("Exp", ["k"], ["e"]), helper.make_node("Add", ["x", "e"], ["y"])]
    made = model(nodes, {"x": [2], "k": [2]}, ["y"], {"k": np.ones(2, np.float32)})
    assert operators(run_passes(made, "fold-constants").model) == ["Exp", "Add"]
    made.ir_version = 3
    outcome = run_passes(made, "constants-not-inputs", "fold-constants")
    assert operators(outcome.model) == ["Add"]
    assert [value.name for value in outcome.model.graph.input] == ["x"]
    assert outcome.model.ir_version == 4


def test_a_weight_that_layers_share_under_several_names_stays_one(model: Any, run_passes: Any, operators: Any) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Identity", ["w"], ["same"]),
        helper.make_node("Identity", ["same"], ["again"]),
        helper.make_node("MatMul", ["h", "again"], ["y"]),
    ]
    outcome = run_passes(model(nodes, {"x": [2, 2]}, ["y"], {"w": np.eye(2, dtype=np.float32)}), "fold-constants")
    assert operators(outcome.model) == ["MatMul", "MatMul"]
    assert [tensor.name for tensor in outcome.model.graph.initializer] == ["w"]


def test_equal_constants_are_kept_once_and_different_ones_all(model: Any, run_passes: Any) -> None:
    constants = {
        "a": np.ones(2, np.float32),
        "b": np.ones(2, np.float32),
        "c": np.ones((2, 1), np.float32),
        "d": -np.zeros(2, np.float32),
        "e": np.zeros(2, np.float32),
    }
    nodes = [helper.make_node("Sum", ["x", *constants], ["y"])]
    outcome = run_passes(model(nodes, {"x": [2, 2]}, ["y"], constants), "merge-constants")
    assert [tensor.name for tensor in outcome.model.graph.initializer] == ["a", "c", "d", "e"]


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_integers_are_divided_by_zero_neither_here_nor_when_folded(op: str, model: Any, run_passes: Any) -> None:
    whole = TensorProto.INT32
    by_input = model(
        [helper.make_node("Identity", ["d"], ["e"]), helper.make_node(op, ["x", "e"], ["y"])],
        {"x": (whole, [64]), "d": (whole, [64])},
        ["y"],
    )
    assert run_passes(by_input, "remove-identities").unverified == {}
    zeros = [{"x": np.ones(64, np.int32), "d": np.zeros(64, np.int32)}]
    given = run_passes(by_input, "remove-identities", inputs=zeros).unverified
    assert "by zero" in given["remove-identities"]
    computed = model(
        [
            helper.make_node("Sub", ["x", "x"], ["z"]),
            helper.make_node("Identity", ["z"], ["e"]),
            helper.make_node(op, ["x", "e"], ["y"]),
        ],
        {"x": (whole, [4])},
        ["y"],
    )
    assert "by zero" in run_passes(computed, "remove-identities").unverified["remove-identities"]
    constant = model(
        [helper.make_node(op, ["a", "b"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])],
        {"x": (whole, [2])},
        ["y"],
        {"a": np.array([3, 4], np.int32), "b": np.array([2, 0], np.int32)},
    )
    assert run_passes(constant, "fold-constants").history[0].changes == 0
