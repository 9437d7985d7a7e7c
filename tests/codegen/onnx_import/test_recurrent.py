"""Recurrent layers, whatever their kind, direction, width, activations, state, bounds and lengths: as ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target
from forge_runtime.engine import Engine

TILED = Options(generator="tiled", opt_level=4, float16=False, channel_layout=None)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
BETA = {"Affine", "HardSigmoid", "ScaledTanh"}
ALPHA = {*BETA, "Elu", "LeakyRelu", "ThresholdedRelu"}
ACTIVATIONS = ("Sigmoid", "Tanh", "Relu", "Softplus", "Softsign", *sorted(ALPHA))
FEATURES = 5
SIZES = ((1, 1), (6, 7))
"""Steps and batch: both are symbolic. Seven sequences are four, two and one."""


@st.composite
def layers(draw: st.DrawFn) -> onnx.ModelProto:
    operator = draw(st.sampled_from(sorted(GATES)))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    hidden, directions = draw(st.sampled_from([1, 3, 12, 18, 40])), 1 + (direction == "bidirectional")
    rows, random = GATES[operator] * hidden, np.random.default_rng(draw(st.integers(0, 99)))
    shapes = {"w": (directions, rows, FEATURES), "r": (directions, rows, hidden)}
    if draw(st.booleans()):
        shapes["b"] = (directions, 2 * rows)
    states = ["h", "c"][: 1 + (operator == "LSTM")] if draw(st.booleans()) else []
    if operator == "LSTM" and states and draw(st.booleans()):
        shapes["p"] = (directions, 3 * hidden)
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if draw(st.booleans()):
        count = FUNCTIONS[operator]
        functions = draw(st.lists(st.sampled_from(ACTIVATIONS), min_size=count, max_size=count)) * directions
        attributes["activations"] = functions
        if {*functions} & ALPHA:
            attributes["activation_alpha"] = [0.3 + 0.1 * at for at, name in enumerate(functions) if name in ALPHA]
        if {*functions} & BETA:
            attributes["activation_beta"] = [0.5 + 0.1 * at for at, name in enumerate(functions) if name in BETA]
    if draw(st.booleans()):
        attributes["clip"] = 0.4
    if operator == "LSTM" and draw(st.booleans()):
        attributes["input_forget"] = 1
    has_lengths = draw(st.booleans())
    if operator == "GRU":
        attributes["linear_before_reset"] = draw(st.integers(0, 1))
    names = [
        "x",
        "w",
        "r",
        "b" if "b" in shapes else "",
        "lengths" if has_lengths else "",
        *states,
        *(["p"] if "p" in shapes else []),
    ]
    outputs = ["y", "y_h", "y_c"][: 2 + (operator == "LSTM")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["steps", "batch", FEATURES])]
    inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, [directions, "batch", hidden]) for name in states]
    if has_lengths:
        inputs.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, ["batch"]))
    graph = helper.make_graph(
        [helper.make_node(operator, names, outputs, **attributes)],
        "graph",
        inputs,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array((random.standard_normal(s) / 2).astype(np.float32), n) for n, s in shapes.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@settings(max_examples=6)
@given(model=layers())
def test_a_recurrent_layer_computes_what_onnx_runtime_computes(model: onnx.ModelProto) -> None:
    engine = Engine(build(model, Target.from_tag("host"), TILED).to_bytes(), threads=1)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for steps, batch in SIZES:
        extents = {"steps": steps, "batch": batch}
        feeds = {
            value.name: np.arange(1, batch + 1, dtype=np.int32)[::-1] % steps + (steps == 1)
            if value.name == "lengths"
            else np.random.default_rng(steps)
            .standard_normal([d.dim_value or extents[d.dim_param] for d in value.type.tensor_type.shape.dim])
            .astype(np.float32)
            for value in model.graph.input
        }
        for want, have in zip(session.run(None, feeds), engine(*feeds.values()), strict=True):
            assert have.shape == want.shape
            if np.isfinite(want).all():
                assert np.abs(have - want).max() <= 5e-5 * max(np.abs(want).max(), 1)
            else:  # a GRU whose gates are no fractions squares its state at every step
                assert not np.isfinite(have).all()


@pytest.mark.parametrize("operator", GATES)
def test_a_sequence_of_no_steps_ends_with_zeros_whatever_its_state_was(operator: str) -> None:
    random, rows = np.random.default_rng(0), GATES[operator] * 3
    states = ["h", "c"][: 1 + (operator == "LSTM")]
    names = ["y", "y_h", "y_c"][: 1 + len(states)]
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3, FEATURES]),
        helper.make_tensor_value_info("lengths", TensorProto.INT32, [3]),
        *(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 3]) for name in states),
    ]
    weights = {"w": random.standard_normal((1, rows, FEATURES)), "r": random.standard_normal((1, rows, 3))}
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "w", "r", "", "lengths", *states], names, hidden_size=3)], "graph", ports,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    given = {"x": random.standard_normal((4, 3, FEATURES)).astype(np.float32), "lengths": np.array([0, 2, 4], np.int32)}
    given |= {name: np.ones((1, 3, 3), np.float32) for name in states}
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    found = Engine(build(model, Target.from_tag("host"), TILED).to_bytes(), threads=1)(*given.values())
    assert not found[1][:, 0].any()
    for want, have in zip(wanted, found, strict=True):
        np.testing.assert_allclose(have, want, rtol=0, atol=1e-5)
