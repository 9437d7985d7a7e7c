"""Batch normalization and constant arithmetic in linear operators, in every form that their attributes have."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

CONSTANT_PARTS = ("gamma", "beta", "mean", "variance")


def _batchnorm(channels: int, random: np.random.Generator, **attributes: Any) -> tuple[onnx.NodeProto, dict[str, Any]]:
    arrays = dict(zip(CONSTANT_PARTS, random.normal(size=(4, channels)).astype(np.float32), strict=True))
    arrays["variance"] = np.abs(arrays["variance"]) + np.float32(0.01)
    return helper.make_node("BatchNormalization", ["c", *CONSTANT_PARTS], ["y"], **attributes), arrays


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_batch_normalization_goes_into_a_convolution_of_any_form(
    data: st.DataObject, model: Any, run_passes: Any, operators: Any
) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    transposed, group = data.draw(st.booleans()), data.draw(st.sampled_from([1, 2]))
    spatial = data.draw(st.integers(1, 3))
    per_in, per_out = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    kernel = [data.draw(st.integers(1, 3)) for _ in range(spatial)]
    first, second = (per_in * group, per_out) if transposed else (per_out * group, per_in)
    constants = {"w": random.normal(size=(first, second, *kernel)).astype(np.float32)}
    inputs = ["x", "w"]
    if data.draw(st.booleans()):
        constants["b"] = random.normal(size=per_out * group).astype(np.float32)
        inputs.append("b")
    attributes: dict[str, Any] = {"group": group, "strides": [data.draw(st.integers(1, 2))] * spatial}
    if data.draw(st.booleans()):
        attributes["pads"] = [1] * (2 * spatial)
    else:
        attributes["auto_pad"] = data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    norm, arrays = _batchnorm(per_out * group, random, epsilon=data.draw(st.sampled_from([1e-5, 1e-3, 0.5])))
    conv = helper.make_node("ConvTranspose" if transposed else "Conv", inputs, ["c"], **attributes)
    made = model([conv, norm], {"x": [2, per_in * group, *[5] * spatial]}, ["y"], constants | arrays)
    outcome = run_passes(made, "fold-batchnorm", "remove-dead")
    assert operators(outcome.model) == [conv.op_type]
    assert outcome.unverified == {}


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [None, (), (1,), (3,), (1, 3), (4, 1), (4, 3)])
def test_batch_normalization_goes_into_gemm_whatever_its_bias_and_factors(
    trans_a: int, trans_b: int, bias: tuple[int, ...] | None, model: Any, run_passes: Any, operators: Any
) -> None:
    random = np.random.default_rng(1)
    constants = {"w": random.normal(size=(3, 5) if trans_b else (5, 3)).astype(np.float32)}
    if bias is not None:
        constants["b"] = np.asarray(random.normal(size=bias), np.float32)
    gemm = helper.make_node(
        "Gemm", ["x", "w"] + ["b"] * (bias is not None), ["c"], alpha=0.5, beta=3.0, transA=trans_a, transB=trans_b
    )
    norm, arrays = _batchnorm(3, random)
    made = model([gemm, norm], {"x": [5, 4] if trans_a else [4, 5]}, ["y"], constants | arrays)
    assert operators(run_passes(made, "fold-batchnorm").model) == ["Gemm"]


def test_batch_normalization_of_two_matrices_makes_a_gemm(model: Any, run_passes: Any, operators: Any) -> None:
    random = np.random.default_rng(1)
    norm, arrays = _batchnorm(3, random)
    constants = {"w": random.normal(size=(5, 3)).astype(np.float32)}
    made = model([helper.make_node("MatMul", ["x", "w"], ["c"]), norm], {"x": [4, 5]}, ["y"], constants | arrays)
    assert operators(run_passes(made, "fold-batchnorm").model) == ["Gemm"]


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("training mode", {"training_mode": 1}),
        ("a variance of zero without epsilon", {"epsilon": 0.0}),
        ("a convolution that something else reads", {}),
        ("weights that are an input", {}),
    ],
)
def test_batch_normalization_stays(
    why: str, change: dict[str, Any], model: Any, run_passes: Any, operators: Any
) -> None:
    random = np.random.default_rng(1)
    norm, arrays = _batchnorm(3, random, **change)
    outputs, inputs = ["y"], {"x": [1, 2, 5, 5]}
    arrays["w"] = random.normal(size=(3, 2, 3, 3)).astype(np.float32)
    if "zero" in why:
        arrays["variance"] = np.zeros(3, np.float32)
    if "reads" in why:
        outputs.append("c")
    if "input" in why:
        inputs["w"] = list(arrays.pop("w").shape)
    if "training" in why:
        norm.output.extend(["running_mean", "running_var"])
    made = model([helper.make_node("Conv", ["x", "w"], ["c"]), norm], inputs, outputs, arrays)
    assert "BatchNormalization" in operators(run_passes(made, "fold-batchnorm").model)


def test_statistics_per_position_of_operator_set_7_stay(model: Any, run_passes: Any, operators: Any) -> None:
    random = np.random.default_rng(1)
    arrays = dict(zip(CONSTANT_PARTS, np.abs(random.normal(size=(4, 3, 3, 3))).astype(np.float32), strict=True))
    norm = helper.make_node("BatchNormalization", ["c", *CONSTANT_PARTS], ["y"], spatial=0)
    arrays["w"] = random.normal(size=(3, 2, 3, 3)).astype(np.float32)
    made = model([helper.make_node("Conv", ["x", "w"], ["c"]), norm], {"x": [1, 2, 5, 5]}, ["y"], arrays, opset=7)
    assert operators(run_passes(made, "fold-batchnorm").model) == ["Conv", "BatchNormalization"]


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("constant_first", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (3, 1, 1), (1, 3, 1, 1)])
def test_constant_arithmetic_per_channel_goes_into_a_convolution(
    op: str, constant_first: bool, shape: tuple[int, ...], model: Any, run_passes: Any, operators: Any
) -> None:
    random = np.random.default_rng(1)
    constants = {
        "w": random.normal(size=(3, 2, 3, 3)).astype(np.float32),
        "k": np.asarray(random.uniform(0.5, 2, shape), np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node(op, ["k", "c"] if constant_first else ["c", "k"], ["y"]),
    ]
    outcome = run_passes(model(nodes, {"x": [1, 2, 5, 5]}, ["y"], constants), "fold-affine")
    kept = op == "Div" and constant_first
    assert operators(outcome.model) == (["Conv", "Div"] if kept else ["Conv"])


@pytest.mark.parametrize("shape", [(3,), (3, 3), (1, 3, 3, 1), (2, 1, 1, 1), (5, 1, 1, 1, 1)])
def test_constants_that_vary_along_another_axis_stay(
    shape: tuple[int, ...], model: Any, run_passes: Any, operators: Any
) -> None:
    constants = {"w": np.ones((1, 2, 3, 3), np.float32), "k": np.full(shape, 2, np.float32)}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Mul", ["c", "k"], ["y"])]
    outcome = run_passes(model(nodes, {"x": [2, 2, 5, 5]}, ["y"], constants), "fold-affine")
    assert operators(outcome.model) == ["Conv", "Mul"]


def test_weights_that_would_overflow_stay(model: Any, run_passes: Any, operators: Any) -> None:
    constants = {"w": np.full((3, 2, 1, 1), 1e30, np.float32), "k": np.float32(1e30)}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Mul", ["c", "k"], ["y"])]
    outcome = run_passes(model(nodes, {"x": [1, 2, 2, 2]}, ["y"], constants), "fold-affine")
    assert operators(outcome.model) == ["Conv", "Mul"]
