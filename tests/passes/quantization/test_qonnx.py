"""QONNX, QDQ and streamlining."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.passes.verification.exact import exact_interpreter, outputs_of
from tests.support.paths import ROOT

node = helper.make_node
QONNX = "qonnx.custom_op.general"
STREAMLINE = ROOT / "conf" / "fold" / "streamline.yaml"


def _qonnx(nodes: list[onnx.NodeProto], shape: list[int], constants: dict[str, Any]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(QONNX, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _defined(x: Any, scale: float, zero: float, bits: int, signed: int, narrow: int, mode: str) -> Any:
    """Quant as the paper defines it."""
    low = -(2 ** (bits - 1)) + narrow if signed else 0
    high = 2 ** (bits - 1) - 1 if signed else 2**bits - 1 - narrow
    held = np.clip(x / np.float32(scale) + np.float32(zero), low, high)
    whole = {"ROUND": np.round, "CEIL": np.ceil, "FLOOR": np.floor, "ROUND_TO_ZERO": np.trunc}[mode](held)
    return (whole - np.float32(zero)) * np.float32(scale)


@settings(max_examples=40, deadline=None)
@given(
    bits=st.integers(2, 9),
    signed=st.integers(0, 1),
    narrow=st.integers(0, 1),
    mode=st.sampled_from(["ROUND", "CEIL", "FLOOR", "ROUND_TO_ZERO"]),
    scale=st.sampled_from([0.5, 0.25, 2.0]),
    zero=st.sampled_from([0.0, 1.0, 2.0]),
)
@example(bits=9, signed=0, narrow=0, mode="ROUND", scale=0.5, zero=0.0)
def test_quant_is_spelt_out_as_it_is_defined(
    bits: int, signed: int, narrow: int, mode: str, scale: float, zero: float, run_passes: Any, operators: Any
) -> None:
    quant = node("Quant", ["x", "s", "z", "b"], ["y"], domain=QONNX, signed=signed, narrow=narrow, rounding_mode=mode)
    made = _qonnx([quant], [2, 50], {"s": scale, "z": zero, "b": float(bits)})
    outcome = run_passes(made, "qonnx-to-qdq")
    assert outcome.unverified == {}
    assert "Quant" not in operators(outcome.model)
    assert [entry.domain for entry in outcome.model.opset_import] == [""]
    x = np.arange(-50, 50, dtype=np.float32).reshape(2, 50) * np.float32(scale / 2)
    (got,) = outputs_of(exact_interpreter(outcome.model), {"x": x})
    np.testing.assert_allclose(got, _defined(x, scale, zero, bits, signed, narrow, mode), atol=1e-6)


def test_eight_bits_become_a_qdq_pair_and_come_back(run_passes: Any, operators: Any) -> None:
    quant = node("Quant", ["x", "s", "z", "b"], ["y"], domain=QONNX, signed=1, narrow=0, rounding_mode="ROUND")
    made = _qonnx([quant], [2, 5], {"s": 0.5, "z": 0.0, "b": 8.0})
    there = run_passes(made, "qonnx-to-qdq").model
    assert operators(there) == ["QuantizeLinear", "DequantizeLinear"]
    back = run_passes(there, "qdq-to-qonnx")
    assert operators(back.model) == ["Quant"]
    assert back.unverified == {}


@settings(max_examples=30, deadline=None)
@given(
    bits=st.integers(2, 8),
    signed=st.integers(0, 1),
    narrow=st.integers(0, 1),
    channels=st.booleans(),
    zero=st.sampled_from([0.0, 2.0]),
)
def test_quant_of_any_width_becomes_qdq_and_comes_back_as_it_was(
    bits: int, signed: int, narrow: int, channels: bool, zero: float, run_passes: Any, operators: Any
) -> None:
    quant = node(
        "Quant", ["x", "s", "z", "b"], ["y"], domain=QONNX, signed=signed, narrow=narrow, rounding_mode="ROUND"
    )
    steps = np.array([0.5, 0.25, 2.0]).reshape(3, 1) if channels else np.array(0.5)
    made = _qonnx([quant], [2, 3, 9], {"s": steps, "z": zero, "b": float(bits)})
    there = run_passes(made, "qonnx-to-qdq")
    assert {"QuantizeLinear", "DequantizeLinear"} <= set(operators(there.model)) or zero > 2 ** (bits - 1) - 1 - narrow
    back = run_passes(there.model, "qdq-to-qonnx")
    assert there.unverified == back.unverified == {}
    whole = bits == 8 and not narrow
    if "QuantizeLinear" in operators(there.model) and (whole or not channels):
        assert operators(back.model) == ["Quant"]
        (found,) = back.model.graph.node
        known = {tensor.name: numpy_helper.to_array(tensor) for tensor in back.model.graph.initializer}
        kept = {entry.name: entry.i for entry in found.attribute if entry.name in ("signed", "narrow")}
        assert float(known[found.input[3]]) == bits
        assert kept == {"signed": signed, "narrow": narrow}
    x = np.arange(-27, 27, dtype=np.float32).reshape(2, 3, 9) / 4
    (want,), (got,) = (outputs_of(exact_interpreter(version), {"x": x}) for version in (made, back.model))
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_bipolar_truncation_and_thresholds_are_spelt_out(run_passes: Any) -> None:
    nodes = [
        node("BipolarQuant", ["x", "s"], ["b"], domain=QONNX),
        node("Trunc", ["x", "s", "z", "eight", "four"], ["t"], domain=QONNX, rounding_mode="FLOOR"),
        node("MultiThreshold", ["x", "limits"], ["m"], domain=QONNX, out_scale=2.0, out_bias=-1.0),
        node("Sum", ["b", "t", "m"], ["y"]),
    ]
    limits = np.array([[-1, 0, 1], [0, 2, 4], [1, 1, 1]])
    made = _qonnx(nodes, [2, 3, 4, 1], {"s": 0.5, "z": 0.0, "eight": 8, "four": 4, "limits": limits})
    outcome = run_passes(made, "qonnx-to-qdq")
    assert outcome.unverified == {}
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 1)).astype(np.float32) * 3
    (got,) = outputs_of(exact_interpreter(outcome.model), {"x": x})
    bipolar = np.where(x >= 0, 0.5, -0.5)
    trunc = np.floor(np.round(x / 0.5) / 16) * 0.5
    reached = (x[..., None] >= limits.reshape(1, 3, 1, 1, 3)).sum(-1) * 2 - 1
    np.testing.assert_allclose(got, bipolar + trunc + reached, atol=1e-6)


@pytest.mark.parametrize("scale", [[2.0], 2.0])
def test_a_factor_moves_past_convolution_relu_and_pooling(
    scale: Any, model: Any, run_passes: Any, operators: Any
) -> None:
    nodes = [
        node("Mul", ["x", "k"], ["m"]),
        node("Conv", ["m", "w"], ["c"]),
        node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2]),
        node("Flatten", ["p"], ["y"]),
    ]
    constants = {"k": np.array(scale, np.float32), "w": np.ones((2, 2, 2, 2), np.float32)}
    outcome = run_passes(model(nodes, {"x": [1, 2, 5, 5]}, ["y"], constants), {"repeat": ["move-scales"]})
    assert operators(outcome.model) == ["Conv", "Relu", "MaxPool", "Flatten", "Mul"]


def test_a_negative_factor_stays_before_relu_and_any_before_a_bias(model: Any, run_passes: Any, operators: Any) -> None:
    made = model([node("Mul", ["x", "k"], ["m"]), node("Relu", ["m"], ["y"])], {"x": [3]}, ["y"], {"k": np.float32(-2)})
    assert operators(run_passes(made, "move-scales").model) == ["Mul", "Relu"]
    constants = {"k": np.float32(2), "w": np.ones((2, 2, 1, 1), np.float32), "b": np.ones(2, np.float32)}
    nodes = [node("Mul", ["x", "k"], ["m"]), node("Conv", ["m", "w", "b"], ["y"])]
    outcome = run_passes(model(nodes, {"x": [1, 2, 3, 3]}, ["y"], constants), "move-scales")
    assert operators(outcome.model) == ["Mul", "Conv"]


@pytest.mark.parametrize("per_column", [False, True])
def test_streamlining_leaves_an_integer_product(per_column: bool, model: Any, run_passes: Any, operators: Any) -> None:
    constants = {
        "s": np.float32(0.1),
        "z": np.uint8(128),
        "w": np.arange(-6, 6, dtype=np.int8).reshape(4, 3),
        "t": np.array([0.1, 0.2, 0.3], np.float32) if per_column else np.float32(0.2),
        "o": np.zeros(3, np.int8) if per_column else np.int8(0),
    }
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "t", "o"], ["f"], axis=1),
        node("MatMul", ["d", "f"], ["y"]),
    ]
    passes = yaml.safe_load(STREAMLINE.read_text())["passes"]
    outcome = run_passes(model(nodes, {"x": [2, 4]}, ["y"], constants), *passes)
    assert operators(outcome.model) == ["QuantizeLinear", "MatMulInteger", "Cast", "Mul"]
    assert outcome.unverified == {}
