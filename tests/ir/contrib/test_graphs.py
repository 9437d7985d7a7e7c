"""Where nodes of com.microsoft may lie, and what is said of those that stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.inspect import inspect
from forge_pipeline.frontends.source import Source
from forge_pipeline.ir.contrib.table import REASONS
from forge_pipeline.ir.qdq.qoperator import RULES
from forge_pipeline.ir.qdq.to_standard import in_standard, kept
from forge_pipeline.ir.reference.interpreter import Interpreter
from tests.support.microsoft import MICROSOFT, assert_same_results, model, own, with_open_sizes


def floats(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("opset", [11, 17])
def test_nodes_in_both_branches_of_an_if(opset: int) -> None:
    """A weight of the outer graph is transposed in one, which takes its shape; both have the same constants."""
    out = helper.make_tensor_value_info("r", TensorProto.FLOAT, None)
    branches = [
        helper.make_graph([own("FusedMatMul", ["x", "w"], ["p"], transB=1), own(gelu, ["p"], ["r"])], gelu, [], [out])
        for gelu in ("QuickGelu", "FastGelu")
    ]
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["h"], then_branch=branches[0], else_branch=branches[1]),
        own("BiasGelu", ["h", "b"], ["y"]),
    ]
    constants = {"w": floats(1, 6, 4), "b": floats(2, 6), "zero": np.float32(0)}
    feeds = [{"x": np.abs(floats(3, 2, 4))}, {"x": -np.abs(floats(4, 3, 4))}]
    written = assert_same_results(with_open_sizes(nodes, feeds, constants, ["y"], opset=opset), feeds)
    assert written.opset_import[0].version == max(opset, 13)


def test_nodes_in_a_local_function() -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    body = [own("SkipLayerNormalization", ["a", "b", "g"], ["n"]), own("Gelu", ["n"], ["r"])]
    function = helper.make_function("local", "block", ["a", "b", "g"], ["r"], body, opsets)
    nodes = [helper.make_node("block", ["x", "x", "g"], ["y"], domain="local")]
    feeds = [{"x": floats(5, 2, n, 8)} for n in (3, 4)]
    net = with_open_sizes(nodes, feeds, {"g": floats(6, 8)}, ["y"])
    net.functions.append(function)
    net.opset_import.append(helper.make_opsetid("local", 1))
    assert_same_results(net, feeds)


def test_a_shape_that_no_file_states_follows_through_operators_that_onnx_does_not_know() -> None:
    """The number of axes of an operand to transpose: behind an operator of ONNX Runtime, and a computed Reshape."""
    nodes = [
        own("FastGelu", ["x"], ["a"]),
        helper.make_node("Shape", ["a"], ["s"]),
        helper.make_node("Concat", ["s", "one"], ["t"], axis=0),
        helper.make_node("Reshape", ["a", "t"], ["b"]),
        own("FusedMatMul", ["b", "b"], ["y"], transA=1),
    ]
    feeds = [{"x": floats(7, 2, n)} for n in (3, 4)]
    written = assert_same_results(with_open_sizes(nodes, feeds, {"one": np.array([1])}, ["y"]), feeds)
    assert "Transpose" in {node.op_type for node in written.graph.node}


def test_a_node_whose_name_is_that_of_its_result_keeps_it() -> None:
    """What gives its operand back as it is makes no other name for it."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="r"),
        own("BitmaskDropout", ["r"], ["d"]),
        helper.make_node("Add", ["d", "r"], ["y"]),
    ]
    feeds = {"x": floats(13, 2, 3)}
    net = model(nodes, feeds, {}, "y", opset=17)
    before = net.SerializeToString()
    written = in_standard(net)
    assert net.SerializeToString() == before
    np.testing.assert_array_equal(Interpreter(written)(feeds)["y"], 2 * np.maximum(feeds["x"], 0))


def test_every_operator_of_onnx_runtime_has_a_rule_or_a_reason() -> None:
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    known = {item.name for item in runtime.get_all_operator_schema() if item.domain == MICROSOFT}
    rules = {name for domain, name in RULES if domain == MICROSOFT}
    assert known <= rules | REASONS.keys()
    assert not rules & REASONS.keys()


def test_all_that_is_refused_is_named_in_one_message(tmp_path: Path) -> None:
    nodes = [
        own("QMoE", ["x", "r", "w", "s", "", "w", "s"], ["a"]),
        own("Gelu", ["a"], ["b"]),
        own("QOrderedGelu", ["b"], ["c"]),
        own("Attention", ["c", "w"], ["d"], num_heads=3, do_rotary=1),
        own("MadeUp", ["d"], ["e"]),
        helper.make_node("Conv", ["e", "w"], ["y"], domain="com.microsoft.nchwc"),
    ]
    for place, node in enumerate(nodes):
        node.name = f"n{place}"
    constants = {"w": floats(8, 4, 4), "s": floats(9, 4), "r": floats(10, 2, 4)}
    path = tmp_path / "net.onnx"
    onnx.save(model(nodes, {"x": floats(11, 2, 4)}, constants, "y", opset=17), path)
    with pytest.raises(ModelError) as raised:
        inspect(Source(path))
    assert raised.value.found == (
        "'com.microsoft.Attention' in 'n3' (rotary embeddings inside); "
        "'com.microsoft.MadeUp' in 'n4' (an operator of ONNX Runtime that has no rule); "
        "'com.microsoft.QMoE' in 'n0' (weights picked by data, an expert for each token); "
        "'com.microsoft.QOrderedGelu' in 'n2' (for a GPU: ONNX Runtime has no kernel on a CPU); "
        "'com.microsoft.nchwc.Conv' in 'n5' (channels in blocks, for one kind of machine: save the model at "
        "ORT_ENABLE_EXTENDED)"
    )


def test_an_operator_set_that_cannot_be_raised_is_the_reason() -> None:
    """Sequences of several lengths: Scan has them in operator set 8 only."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["a"], ["b"])],
        "body",
        [value("a", TensorProto.FLOAT, [3])],
        [value("b", TensorProto.FLOAT, [3])],
    )
    nodes = [
        helper.make_node("Scan", ["n", "x"], ["s"], body=body, num_scan_inputs=1),
        own("Gelu", ["s"], ["y"]),
    ]
    net = model(nodes, {"x": floats(14, 1, 2, 3)}, {"n": np.array([2])}, "y", opset=8)
    written = in_standard(net)
    assert written is net
    assert "does not bring operator set 8" in kept(written)["y"]


def test_what_is_in_standard_already_is_left_alone() -> None:
    net = model([helper.make_node("Relu", ["x"], ["y"])], {"x": floats(12, 2)}, {}, "y", opset=17)
    assert in_standard(net) is net
