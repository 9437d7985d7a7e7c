"""Attention, products of one value, and reshapes around elementwise operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from forge_pipeline.passes import PassError

B, H, S, T, D = 2, 3, 4, 5, 8
node = helper.make_node
LINES = {
    "div": (["div"], []),
    "mul": (["mul"], []),
    "halves": ([], ["q", "k"]),
    "none": ([], []),
}


def _model(
    model: Any, *, scale: str = "div", mask: Any = None, heads: bool = True, opset: int = 23, **change: Any
) -> Any:
    """Attention as exporters write it, with its heads split off and joined around it, or without."""
    behind, before = LINES[scale]
    root = np.float32(np.sqrt(D))
    constants: dict[str, Any] = {
        "div": root, "mul": np.float32(1) / root, "half": np.sqrt(np.float32(1) / root).astype(np.float32),
        "apart": np.array([0, 0, H, D]), "joined": np.array([0, 0, H * D]),
    }  # fmt: skip
    nodes, inputs = [], {}
    for name, size in (("q", S), ("k", T), ("v", T)):
        turned = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        inputs[name] = [B, size, H * D] if heads else [B, H, size, D]
        value = name
        if heads:
            nodes.append(node("Reshape", [name, "apart"], [f"{name}_apart"]))
            nodes.append(node("Transpose", [f"{name}_apart"], [f"{name}_4"], perm=turned))
            value = f"{name}_4"
        elif name == "k":
            nodes.append(node("Transpose", [name], ["k_4"], perm=[0, 1, 3, 2]))
            value = "k_4"
        if name in before:
            nodes.append(node("Mul", [value, "half"], [f"{name}_half"]))
            value = f"{name}_half"
        constants[f"{name}_is"] = value
    named = {name: constants.pop(f"{name}_is") for name in "qkv"}
    nodes.append(node("MatMul", [named["q"], named["k"]], ["scores"]))
    last = "scores"
    for op in behind:
        nodes.append(node(op.capitalize(), [last, op], ["scaled"]))
        last = "scaled"
    if mask is not None:
        inputs["m"] = mask
        nodes.append(node("Add", ["m", last], ["masked"]))
        last = "masked"
    nodes.append(node("Softmax", [last], ["p"], axis=change.get("axis", -1)))
    nodes.append(node("MatMul", ["p", named["v"]], ["mixed" if heads else "y"]))
    if heads:
        nodes.append(node("Transpose", ["mixed"], ["turned"], perm=[0, 2, 1, 3]))
        nodes.append(node("Reshape", ["turned", "joined"], ["y"]))
    used = {name for made in nodes for name in made.input}
    kept = {name: array for name, array in constants.items() if name in used}
    return model(nodes, inputs, ["y", *change.get("outputs", [])], kept, opset=opset)


@pytest.mark.parametrize("scale", LINES)
@pytest.mark.parametrize("mask", [None, [S, T], [B, 1, S, T], [H, S, T], [B, 1, 1, T]])
@pytest.mark.parametrize("heads", [True, False])
def test_attention_is_one_operator_with_its_scale_and_mask(
    scale: str, mask: Any, heads: bool, model: Any, run_passes: Any, operators: Any
) -> None:
    outcome = run_passes(_model(model, scale=scale, mask=mask, heads=heads), "fuse-attention", "remove-dead")
    widened = mask is not None and mask[-2] == 1
    assert operators(outcome.model) == [*["Expand"] * widened, "Attention"]
    assert outcome.unverified == {}
    assert outcome.overall["verified"]


@pytest.mark.parametrize(
    "change",
    [{"opset": 22}, {"axis": 1}, {"outputs": ["scores"]}, {"outputs": ["p"]}, {"mask": [S, 1]}],
    ids=str,
)
def test_what_is_no_attention_or_has_other_readers_is_left_alone(change: Any, model: Any, run_passes: Any) -> None:
    assert run_passes(_model(model, **change), "fuse-attention").history[0].changes == 0


def test_heads_that_are_broadcast_are_left_alone(model: Any, run_passes: Any) -> None:
    nodes = [node("MatMul", ["q", "k"], ["s"]), node("Softmax", ["s"], ["p"]), node("MatMul", ["p", "v"], ["y"])]
    made = model(nodes, {"q": [B, H, S, D], "k": [B, 1, D, T], "v": [B, 1, T, D]}, ["y"], opset=23)
    assert run_passes(made, "fuse-attention").history[0].changes == 0


@pytest.mark.parametrize("mask", [None, [B, 1, S, T]])
def test_attention_is_spelt_out_again_by_its_definition(mask: Any, model: Any, run_passes: Any, operators: Any) -> None:
    spelt = {"decompose-functions": {"operators": ["Attention"]}}
    outcome = run_passes(_model(model, mask=mask), "fuse-attention", "remove-dead", spelt)
    assert "Attention" not in operators(outcome.model)
    assert operators(outcome.model).count("MatMul") == 2
    assert outcome.overall["verified"]
    assert outcome.unverified == {}


@pytest.mark.parametrize(("count", "biased", "nodes"), [(3, True, 3), (2, True, 3), (3, False, 2), (2, False, 2)])
def test_products_of_one_value_are_one_where_that_is_fewer_nodes(
    count: int, biased: bool, nodes: int, model: Any, run_passes: Any, operators: Any
) -> None:
    random = np.random.default_rng(3)
    constants, made = {}, []
    for i in range(count):
        constants[f"w{i}"] = random.normal(size=(6, 2 + i)).astype(np.float32)
        made.append(node("MatMul", ["x", f"w{i}"], [f"p{i}"]))
        if biased:
            constants[f"b{i}"] = random.normal(size=2 + i).astype(np.float32)
            made.append(node("Add", [f"b{i}", f"p{i}"], [f"a{i}"]))
        made.append(node("Relu", [f"a{i}" if biased else f"p{i}"], [f"y{i}"]))
    built = model(made, {"x": [2, 3, 6]}, [f"y{i}" for i in range(count)], constants)
    outcome = run_passes(built, "merge-products")
    assert len(operators(outcome.model)) == nodes + count
    assert (outcome.history[0].changes == 1) == (nodes < count * (1 + biased))
    assert outcome.unverified == {}


@pytest.mark.parametrize(
    ("shape", "flat", "axis", "merged"),
    [([2, 6, 1, 1], [2, 6], -1, True), ([2, 3, 4], [6, 4], 1, True), ([2, 3, 4], [2, 12], 1, False)],
)
def test_a_softmax_between_two_reshapes_takes_the_value_as_it_was(
    shape: list[int], flat: list[int], axis: int, merged: bool, model: Any, run_passes: Any, operators: Any
) -> None:
    nodes = [
        node("Reshape", ["x", "flat"], ["r"]),
        node("Softmax", ["r"], ["s"], axis=axis),
        node("Sigmoid", ["s"], ["t"]),
        node("Reshape", ["t", "shape"], ["y"]),
    ]
    made = model(nodes, {"x": shape}, ["y"], {"flat": np.array(flat), "shape": np.array(shape)})
    outcome = run_passes(made, "cancel-reshapes", "remove-dead")
    assert operators(outcome.model) == (["Softmax", "Sigmoid"] if merged else [n.op_type for n in nodes])
    assert outcome.unverified == {}


def test_conversion_of_the_operator_set_goes_one_way_where_asked(model: Any, run_passes: Any) -> None:
    made = model([node("Relu", ["x"], ["y"])], {"x": [3]}, ["y"], opset=21)
    for only, version, expected in (("up", 17, 21), ("up", 23, 23), ("down", 17, 17), ("down", 23, 21)):
        model_after = run_passes(made, {"convert-opset": {"version": version, "only": only}}).model
        assert model_after.opset_import[0].version == expected


def test_a_model_that_cannot_be_converted_is_refused_or_stays_with_the_reason(model: Any, run_passes: Any) -> None:
    made = model([node("Attention", ["q", "q", "q"], ["y"])], {"q": [1, 2, 3, 4]}, ["y"], opset=23)
    with pytest.raises(PassError, match="pass 'convert-opset'"):
        run_passes(made, {"convert-opset": {"version": 22}})
    outcome = run_passes(made, {"convert-opset": {"version": 22, "required": False}})
    assert outcome.model.opset_import[0].version == 23
    assert "stays at set 23" in outcome.findings["convert-opset"]
    onnx.checker.check_model(outcome.model)
    assert outcome.model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_half_precision_is_left_alone_since_the_operator_overflows_on_other_numbers(
    model: Any, run_passes: Any
) -> None:
    made = _model(model)
    for value in (*made.graph.input, *made.graph.output, *made.graph.value_info):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    for tensor in made.graph.initializer:
        tensor.CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
        )
    assert run_passes(made, "fuse-attention").history[0].changes == 0


def test_a_scan_with_a_batch_axis_is_not_carried_into_a_set_without_it(run_passes: Any) -> None:
    made = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 8]>
        g (float[1, 3, 2] x, float[1, 2] start) => (float[1, 2] last) {
            last = Scan<num_scan_inputs = 1, body = body (float[2] s, float[2] e) => (float[2] t) { t = Add(s, e) }>
                ("", start, x)
        }""")
    outcome = run_passes(made, {"convert-opset": {"version": 24, "required": False}})
    assert "Scan has no batch axis from set 9 on" in outcome.findings["convert-opset"]
