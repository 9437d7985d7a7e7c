"""How often a model is run for its verification: a large one takes seconds each time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.passes import PASSES, VerifySettings, apply, plan
from forge_pipeline.passes.verification.verify import Verifier

SAMPLES = 3
SETTINGS = VerifySettings(rtol=1e-5, atol=1e-6, samples=SAMPLES, seed=0, dims={})


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the first output of each run of the whole model: what is folded takes no `x`."""
    seen: list[str] = []
    plain = Interpreter.__call__

    def counting(self: Interpreter, feed: Mapping[str, Any], names: Any = None) -> dict[str, Any]:
        if "x" in feed:
            seen.append(self.outputs[0])
        return plain(self, feed, names)

    monkeypatch.setattr(Interpreter, "__call__", counting)
    return seen


def _model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Add", ["a", "a"], ["b"]),
        helper.make_node("Mul", ["x", "b"], ["scaled"]),
        helper.make_node("Mul", ["x", "b"], ["again"]),
        helper.make_node("Add", ["scaled", "again"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 4]) for name in "xy")
    constant = helper.make_tensor("a", TensorProto.FLOAT, [4], np.ones(4, np.float32))
    graph = helper.make_graph(nodes, "g", [x], [y], [constant])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_each_state_of_a_model_is_run_once_with_each_input(runs: list[str]) -> None:
    steps = plan([{"fold-constants": {"max_bytes": 1 << 20}}, "merge-subexpressions"], PASSES, where="passes")
    model = _model()
    outcome = apply(model, steps, Verifier.of(model, SETTINGS))
    assert len(outcome.model.graph.node) == 2 and not outcome.unverified
    original, random, special = SAMPLES, 1, 1
    assert len(runs) == original + random + special + 2 * (SAMPLES + special)
