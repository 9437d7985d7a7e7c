"""Integer products of the reference: what the standard says, on CPUs whose fastest instructions saturate too."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.ir.reference.saturation import without_saturation

STEPS = 64
ZERO = 3


def model(operator: str, x: Any, tensors: dict[str, Any], inputs: list[str], dtype: int) -> onnx.ModelProto:
    """Return a model of one node that reads x and constants."""
    graph = helper.make_graph(
        [helper.make_node(operator, inputs, ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)],
        [helper.make_tensor_value_info("y", dtype, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def run(made: onnx.ModelProto, x: Any) -> Any:
    return Interpreter(made)({"x": x})["y"]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 30), zero=st.integers(-128, 127), given_zero=st.booleans())
def test_products_of_the_largest_bytes_are_exact(seed: int, zero: int, given_zero: bool) -> None:
    random = np.random.default_rng(seed)
    w = random.choice(np.array([-128, 127, 126], np.int8), (STEPS, 7))
    x = random.choice(np.array([0, 254, 255], np.uint8), (3, STEPS))
    tensors = {"w": w, "xz": np.uint8(ZERO)} | ({"wz": np.int8(zero)} if given_zero else {})
    inputs = ["x", "w", "xz", *(["wz"] if given_zero else [])]
    exact = (x.astype(int) - ZERO) @ (w.astype(int) - (zero if given_zero else 0))
    np.testing.assert_array_equal(run(model("MatMulInteger", x, tensors, inputs, TensorProto.INT32), x), exact)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("operator", ["QLinearMatMul", "QLinearConv"])
def test_products_that_are_stored_in_bytes_are_not_cut_off(operator: str, per_channel: bool) -> None:
    is_conv = operator == "QLinearConv"
    x = np.full((1, STEPS, 2, 2) if is_conv else (2, STEPS), 255, np.uint8)
    w = np.full((5, STEPS, 1, 1) if is_conv else (STEPS, 5), 127, np.int8)
    sums, step = (255 - ZERO) * 127 * STEPS, np.float32(2.0**14)
    ones = (lambda value: np.full(5, value)) if per_channel else np.asarray
    tensors = {
        "s": np.float32(1), "z": np.uint8(ZERO), "w": w, "ws": ones(np.float32(1)), "wz": ones(np.int8(0)),
        "ys": step, "yz": np.uint8(9),
    }  # fmt: skip
    made = model(operator, x, tensors, ["x", "s", "z", "w", "ws", "wz", "ys", "yz"], TensorProto.UINT8)
    assert set(run(made, x).ravel()) == {np.rint(sums / step) + 9}


def test_a_model_without_signed_constants_stays_as_it_is() -> None:
    x = np.zeros((2, STEPS), np.uint8)
    floating = model("Identity", x, {}, ["x"], TensorProto.UINT8)
    assert without_saturation(floating) is floating
    unsigned = model("MatMulInteger", x, {"w": np.ones((STEPS, 2), np.uint8)}, ["x", "w"], TensorProto.INT32)
    assert without_saturation(unsigned) == unsigned
