"""Steps of an LSTM whose state is rounded to bytes: as ONNX Runtime's DynamicQuantizeLSTM, by each kind of weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.ir.canonical import canonical_model
from forge_pipeline.ir.qdq.to_standard import in_standard
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.target import Target
from tests.support.emulated.choice import load
from tests.support.int8.compare import HERE, OPTIONS

INPUTS = 12
RANGES = {"seven bits": (np.int8, -63, 64, 0), "eight bits": (np.int8, -128, 128, 0), "bytes": (np.uint8, 0, 256, 90)}
"""Type, range and zero point of weights: those of which pairs fit int16, those of int8, and those that it has not."""


def layer(weights: str, hidden: int, *, per_row: bool, has_states: bool) -> onnx.ModelProto:
    """Return a layer in both directions with open steps and batch."""
    random: Any = np.random.default_rng(hidden)
    dtype, low, high, zero = RANGES[weights]
    constants = {"b": (random.standard_normal((2, 8 * hidden)) / 10).astype(np.float32)}
    for name, rows in (("w", INPUTS), ("r", hidden)):
        shape = (2, 4 * hidden) if per_row else (2,)
        constants[name] = random.integers(low, high, (2, rows, 4 * hidden)).astype(dtype)
        constants[f"{name}s"] = (random.uniform(0.5, 1, shape) / 60 / hidden**0.5).astype(np.float32)
        constants[f"{name}z"] = np.full(shape, zero, dtype)
    states = ["h", "c"] if has_states else ["", ""]
    names = ["x", "w", "r", "b", "", *states, "", "ws", "wz", "rs", "rz"]
    outputs = ["y", "y_h", "y_c"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", names, outputs, domain="com.microsoft", hidden_size=hidden, direction="bidirectional"
    )
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["steps", "batch", INPUTS])]
    inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, "batch", hidden]) for name in states if name]
    graph = helper.make_graph(
        [node],
        "graph",
        inputs,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.every(6)
@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("hidden", [8, 20, 72])
@pytest.mark.parametrize("weights", RANGES)
def test_states_are_rounded_and_multiplied_as_onnx_runtime_does(weights: str, hidden: int, per_row: bool) -> None:
    model = canonical_model(in_standard(layer(weights, hidden, per_row=per_row, has_states=hidden == 20)))
    library = build(model, Target.from_tag(HERE), OPTIONS)
    engine, reference = load(library.to_bytes(), Target.from_tag(HERE)), Interpreter(model)
    for steps, batch in ((1, 1), (5, 7)):
        random: Any = np.random.default_rng(steps)
        feeds = {"x": random.standard_normal((steps, batch, INPUTS)).astype(np.float32)}
        for value in model.graph.input[1:]:
            feeds[value.name] = random.standard_normal((2, batch, hidden)).astype(np.float32) / 2
        feeds = dict(zip([value.name for value in model.graph.input], feeds.values(), strict=True))
        for want, have in zip(reference(feeds).values(), engine(*feeds.values()), strict=True):
            assert np.abs(want - have).max() <= 3e-3  # where a state falls between two bytes, by one step of it
            assert np.abs(want - have).mean() <= 1e-5
