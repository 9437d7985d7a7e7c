"""Passes within the graphs of If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.ir.traversal import nodes_below

FLOAT = TensorProto.FLOAT
NORM = {"gamma": [1.5, 0.5], "beta": [0.1, 0.2], "mean": [0.3, -0.2], "variance": [0.9, 1.2]}


def _value(name: str, shape: Any, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _folding(prefix: str) -> list[onnx.NodeProto]:
    """Conv by a captured weight, a normalization, and an identity: all of it is one Conv."""
    p = prefix
    return [
        helper.make_node("Conv", [f"{p}_in", "w"], [f"{p}_conv"]),
        helper.make_node("BatchNormalization", [f"{p}_conv", *NORM], [f"{p}_norm"]),
        helper.make_node("Identity", [f"{p}_norm"], [f"{p}_out"]),
    ]


def _loop() -> list[onnx.NodeProto]:
    inputs = [_value("i", [], TensorProto.INT64), _value("go", [], TensorProto.BOOL), _value("body_in", [1, 2, 3, 3])]
    nodes = [helper.make_node("Identity", ["go"], ["go_on"]), *_folding("body")]
    outputs = [_value("go_on", [], TensorProto.BOOL), _value("body_out", [1, 2, 3, 3])]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    return [helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)]


def _scan() -> list[onnx.NodeProto]:
    body = helper.make_graph(
        [*_folding("body"), helper.make_node("Identity", ["body_out"], ["row"])],
        "body",
        [_value("body_in", [1, 2, 3, 3]), _value("unused", [2, 3, 3])],
        [_value("body_out", [1, 2, 3, 3]), _value("row", [1, 2, 3, 3])],
    )
    return [helper.make_node("Scan", ["x", "x"], ["y", "rows"], body=body, num_scan_inputs=1)]


def _if() -> list[onnx.NodeProto]:
    then = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["then_in"]), *_folding("then")],
        "t",
        [],
        [_value("then_out", [1, 2, 3, 3])],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Neg", ["n"], ["else_out"])],
        "e",
        [],
        [_value("else_out", [1, 2, 3, 3])],
    )
    total = helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0)
    positive = helper.make_node("Greater", ["sum", "zero"], ["positive"])
    return [total, positive, helper.make_node("If", ["positive"], ["y"], then_branch=then, else_branch=other)]


def _nested() -> list[onnx.NodeProto]:
    (loop,) = _loop()
    loop.output[0] = "then_out"
    then = helper.make_graph([loop], "t", [], [_value("then_out", [1, 2, 3, 3])])
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["else_out"])], "e", [], [_value("else_out", [1, 2, 3, 3])]
    )
    total, positive, _ = _if()
    return [total, positive, helper.make_node("If", ["positive"], ["y"], then_branch=then, else_branch=other)]


SHAPES = ([1, 2, 3, 3], [1, 1, 2, 3, 3])
CASES = {"loop": _loop, "scan": _scan, "if": _if, "nested": _nested}


def _made(case: str) -> onnx.ModelProto:
    random = np.random.default_rng(1)
    constants: dict[str, Any] = {"w": random.normal(size=(2, 2, 1, 1)).astype(np.float32)}
    constants |= {name: np.array(values, np.float32) for name, values in NORM.items()}
    constants |= {"zero": np.float32(0), "count": np.array(3)}
    nodes = CASES[case]()
    outputs = [_value(name, shape) for name, shape in zip(nodes[-1].output, SHAPES, strict=False)]
    graph = helper.make_graph(
        nodes,
        "g",
        [_value("x", [1, 2, 3, 3])],
        outputs,
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def _all(model: onnx.ModelProto) -> Iterator[str]:
    return (node.op_type for node in nodes_below(model.graph.node))


@pytest.mark.parametrize("case", CASES)
def test_a_normalization_in_a_body_is_folded_into_its_convolution(case: str, run_passes: Any) -> None:
    made = _made(case)
    outcome = run_passes(made, {"repeat": ["remove-identities", "fold-batchnorm", "remove-dead"]})
    onnx.checker.check_model(outcome.model, full_check=True)
    found = list(_all(outcome.model))
    assert found.count("Conv") == 1
    assert "BatchNormalization" not in found
    assert outcome.unverified == {}
    assert outcome.overall["verified"]


@pytest.mark.parametrize("case", CASES)
def test_new_names_in_a_body_hide_none_of_the_model(case: str, run_passes: Any) -> None:
    made = _made(case)
    made.graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.float32), "w_scaled"))
    made.graph.node.append(helper.make_node("Identity", ["w_scaled"], ["kept"]))
    made.graph.output.append(_value("kept", [2]))
    outcome = run_passes(made, "fold-batchnorm")
    onnx.checker.check_model(outcome.model, full_check=True)
    inner = [name for node in nodes_below(outcome.model.graph.node) for name in node.output if name]
    defined = [*inner, *(tensor.name for tensor in outcome.model.graph.initializer)]
    assert len(defined) == len(set(defined))


def test_a_wrong_pass_in_a_body_is_caught(run_passes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from forge_pipeline.passes.fusion import fold_affine
    from forge_pipeline.passes.verification.verify import PassVerificationError

    right = fold_affine.batchnorm

    def wrong(graph: Any, node: Any) -> Any:
        found = right(graph, node)
        return found and fold_affine.Affine(scale=found.scale, shift=-found.shift)

    monkeypatch.setattr(fold_affine, "batchnorm", wrong)
    with pytest.raises(PassVerificationError, match="pass 'fold-batchnorm'"):
        run_passes(_made("loop"), "fold-batchnorm")


def test_functions_are_spelt_out_in_bodies_too(run_passes: Any) -> None:
    body = helper.make_graph([helper.make_node("Celu", ["x"], ["a"])], "b", [], [_value("a", [4])])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["b"])], "b", [], [_value("b", [4])])
    graph = helper.make_graph(
        [helper.make_node("If", ["go"], ["y"], then_branch=body, else_branch=other)],
        "g",
        [_value("x", [4]), _value("go", [], TensorProto.BOOL)],
        [_value("y", [4])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    outcome = run_passes(made, {"decompose-functions": {"operators": ["Celu"]}})
    onnx.checker.check_model(outcome.model, full_check=True)
    assert "Celu" not in set(_all(outcome.model))
    assert {"Elu", "If"} <= set(_all(outcome.model))
    assert outcome.unverified == {}
