"""Affine quantization: half a step of error at most, and zero exactly zero."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.quantization.integers import (
    INTEGERS,
    Affine,
    activation_affine,
    dequantize,
    quantize,
    weight_scale,
)

ends = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
kinds = st.sampled_from(sorted(INTEGERS))


@given(ends, ends, kinds, st.booleans(), st.floats(0, 1))
def test_a_value_of_the_range_returns_within_half_a_step(
    one: float, other: float, kind: str, symmetric: bool, share: float
) -> None:
    low, high = min(one, other, 0.0), max(one, other, 0.0)
    if high - low < 1e-20:
        return
    affine = activation_affine(low, high, INTEGERS[kind], symmetric=symmetric)
    value = np.float32(low + share * (high - low))
    found = dequantize(quantize(np.array([value]), affine, INTEGERS[kind]), affine)[0]
    rounding = 4 * np.finfo(np.float32).eps * max(abs(low), abs(high))
    assert abs(float(found) - float(value)) <= float(affine.scale) / 2 + rounding


@given(ends, ends, kinds, st.booleans())
def test_zero_is_represented_exactly(one: float, other: float, kind: str, symmetric: bool) -> None:
    low, high = min(one, other), max(one, other)
    if max(abs(low), abs(high)) < 1e-20:
        return
    affine = activation_affine(low, high, INTEGERS[kind], symmetric=symmetric)
    zero = np.zeros(1, np.float32)
    assert dequantize(quantize(zero, affine, INTEGERS[kind]), affine)[0] == 0.0
    assert INTEGERS[kind].low <= affine.zero <= INTEGERS[kind].high


@given(st.integers(0, 2**32 - 1), st.sampled_from([None, 0, 1]))
def test_a_weight_returns_within_half_a_step_of_its_channel(seed: int, axis: int | None) -> None:
    draw = np.random.default_rng(seed)
    weights = (draw.normal(size=(5, 4, 3)) * 2.0 ** draw.integers(-20, 20, (5, 4, 1))).astype(np.float32)
    scale = weight_scale(weights, axis, largest=127)
    affine = Affine(scale=scale, zero=np.zeros(scale.shape, np.int8), axis=axis)
    steps = quantize(weights, affine, INTEGERS["int8"])
    shape = [1, 1, 1]
    if axis is not None:
        shape[axis] = -1
    assert (np.abs(steps.astype(int)) <= 127).all()
    assert (np.abs(dequantize(steps, affine) - weights) <= scale.reshape(shape) * 0.5001).all()


def test_a_channel_of_zeros_gets_a_scale_that_works() -> None:
    weights = np.zeros((2, 3), np.float32)
    weights[1] = 1.27
    np.testing.assert_allclose(weight_scale(weights, 0, largest=127), [0.01, 0.01], rtol=1e-6)
    assert weight_scale(np.zeros((2, 3), np.float32), 0, largest=127).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", sorted(INTEGERS))
def test_our_integers_are_those_of_onnx_runtime(kind: str) -> None:
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    affine = activation_affine(-1.3, 2.9, INTEGERS[kind], symmetric=False)
    values = np.concatenate(
        [np.linspace(-4, 4, 4001), (np.arange(-300, 300) + 0.5) * float(affine.scale)]  # ties among them
    ).astype(np.float32)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, values.shape)],
        [helper.make_tensor_value_info("y", element, values.shape)],
        [numpy_helper.from_array(affine.scale, "s"), numpy_helper.from_array(affine.zero, "z")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert (session.run(None, {"x": values})[0] == quantize(values, affine, INTEGERS[kind])).all()
