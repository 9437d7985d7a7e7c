"""Graphs for the passes: one operator in the middle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.passes import PASSES, Outcome, VerifySettings, apply, plan
from forge_pipeline.passes.verification.verify import Verifier

SETTINGS = VerifySettings(rtol=1e-5, atol=1e-6, samples=4, seed=0, dims={})


def _model(
    text_nodes: list[onnx.NodeProto],
    inputs: Mapping[str, Any],
    outputs: list[str] | Mapping[str, Any],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
) -> onnx.ModelProto:
    """Build a checked model; an input is a float shape or ``(elem_type, shape)``; outputs are inferred or given."""

    def described(name: str, spec: Any) -> onnx.ValueInfoProto:
        elem_type, shape = spec if isinstance(spec, tuple) else (TensorProto.FLOAT, spec)
        return helper.make_tensor_value_info(name, elem_type, shape)

    graph = helper.make_graph(
        text_nodes,
        "g",
        [described(name, spec) for name, spec in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    known = onnx.shape_inference.infer_shapes(model, data_prop=True)
    del model.graph.output[:]
    if isinstance(outputs, Mapping):
        model.graph.output.extend(described(name, spec) for name, spec in outputs.items())
    else:
        model.graph.output.extend(known.graph.output)
    onnx.checker.check_model(model)
    return model


def _apply(model: onnx.ModelProto, *names: Any, settings: VerifySettings = SETTINGS, **inputs: Any) -> Outcome:
    """Run passes over a model with verification."""
    steps = plan(list(names), PASSES, where="passes")
    return apply(model, steps, Verifier.of(model, settings, **inputs))


def _operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.fixture(scope="session")
def model() -> Callable[..., onnx.ModelProto]:
    """Build a small model."""
    return _model


@pytest.fixture(scope="session")
def run_passes() -> Callable[..., Outcome]:
    """Run passes by name, verified."""
    return _apply


@pytest.fixture(scope="session")
def operators() -> Callable[[onnx.ModelProto], list[str]]:
    """List the operators of a model in order."""
    return _operators
