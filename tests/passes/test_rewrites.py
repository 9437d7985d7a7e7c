"""Chains, fusions, decompositions, control flow and interfaces: what becomes what, and what stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from forge_pipeline.errors import ConfigError, ModelError
from forge_pipeline.passes import PassError
from tests.support.sums import assert_same_sums

node = helper.make_node
F, I64 = TensorProto.FLOAT, TensorProto.INT64


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_an_operation_by_a_neutral_element_goes_whichever_side_it_is_on(
    op: str, model: Any, run_passes: Any, operators: Any
) -> None:
    neutral = {"k": np.full((1, 1), 0 if op == "Add" else 1, np.float32)}
    for names in (["x", "k"], ["k", "x"]):
        nodes = [node(op, names, ["a"]), node("Relu", ["a"], ["y"])]
        assert operators(run_passes(model(nodes, {"x": [2, 3]}, ["y"], neutral), "remove-identities").model) == ["Relu"]


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("Cast", ["x"], ["y"], to=F)], {}),
        ([node("Transpose", ["x"], ["y"], perm=[0, 1])], {}),
        ([node("Reshape", ["x", "k"], ["y"])], {"k": np.array([2, -1])}),
        ([node("Expand", ["x", "k"], ["y"])], {"k": np.array([1, 1])}),
        ([node("Slice", ["x", "a", "b"], ["y"])], {"a": np.array([0, 0]), "b": np.array([9, 9])}),
        ([node("Pad", ["x", "k"], ["y"])], {"k": np.zeros(4, np.int64)}),
        ([node("Concat", ["x"], ["y"], axis=0)], {}),
        ([node("Dropout", ["x"], ["y"])], {}),
        ([node("Max", ["x", "x"], ["y"])], {}),
        ([node("Where", ["k", "x", "z"], ["y"])], {"k": np.array([[True]])}),
        ([node("Pow", ["x", "k"], ["y"])], {"k": np.float32(1)}),
        ([node("Tile", ["x", "k"], ["y"])], {"k": np.array([1, 1])}),
        ([node("Clip", ["x"], ["y"])], {}),
        ([node("LeakyRelu", ["x"], ["y"], alpha=1.0)], {}),
        ([node("PRelu", ["x", "k"], ["y"])], {"k": np.ones((1, 1), np.float32)}),
        ([node("Split", ["x"], ["y"], axis=0)], {}),
        ([node("Where", ["c", "x", "x"], ["y"])], {"c": np.array([[True, False, True]])}),
    ],
    ids=lambda value: value[0].op_type if isinstance(value, list) else "",
)
def test_what_gives_back_its_operand_goes(
    nodes: list[Any], constants: Any, model: Any, run_passes: Any, operators: Any
) -> None:
    nodes[0].output[0] = "out"
    made = model([*nodes, node("Add", ["out", "z"], ["y"])], {"x": [2, 3], "z": [2, 3]}, ["y"], constants)
    assert operators(run_passes(made, "remove-identities").model) == ["Add"]


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ("Neg", "Neg", []), ("Abs", "Abs", ["Abs"]), ("Relu", "Abs", ["Relu"]), ("Floor", "Round", ["Floor"]),
        ("Abs", "Relu", ["Abs"]), ("Sign", "Ceil", ["Sign"]), ("Sign", "Sign", ["Sign"]),
        ("Neg", "Abs", ["Neg", "Abs"]), ("Relu", "Sign", ["Relu", "Sign"]), ("Round", "Sign", ["Round", "Sign"]),
    ],
)  # fmt: skip
def test_what_is_settled_or_undone_goes(
    before: str, after: str, kept: list[str], model: Any, run_passes: Any, operators: Any
) -> None:
    nodes = [node(before, ["x"], ["a"]), node(after, ["a"], ["b"]), node("Add", ["b", "z"], ["y"])]
    made = model(nodes, {"x": [2, 40], "z": [2, 40]}, ["y"])
    assert operators(run_passes(made, "remove-identities", "remove-dead").model) == [*kept, "Add"]


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("Dropout", ["x", "r", "t"], ["y"])], {"r": np.float32(0.5), "t": np.array(True)}),
        ([node("Add", ["x", "k"], ["y"])], {"k": np.zeros((2, 1, 1), np.float32)}),
        ([node("Div", ["k", "x"], ["y"])], {"k": np.float32(1)}),
        ([node("Sub", ["k", "x"], ["y"])], {"k": np.float32(0)}),
        ([node("Cast", ["x"], ["y"], to=TensorProto.DOUBLE)], {}),
    ],
    ids=["training", "wider", "quotient", "difference", "cast"],
)
def test_what_changes_its_operand_stays(
    nodes: list[Any], constants: Any, model: Any, run_passes: Any, operators: Any
) -> None:
    nodes[0].output[0] = "out"
    made = model([*nodes, node("Abs", ["out"], ["y"])], {"x": [2, 3]}, ["y"], constants)
    assert operators(run_passes(made, "remove-identities").model) == [nodes[0].op_type, "Abs"]


def test_an_input_that_goes_straight_to_an_output_keeps_its_copy(model: Any, run_passes: Any, operators: Any) -> None:
    made = model([node("Identity", ["x"], ["y"])], {"x": [2]}, ["y"])
    assert operators(run_passes(made, "remove-identities").model) == ["Identity"]


def test_transposes_sink_meet_and_vanish(model: Any, run_passes: Any, operators: Any) -> None:
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[0, 2, 3, 1]),
        node("Mul", ["t", "k"], ["m"]),
        node("Relu", ["m"], ["r"]),
        node("Transpose", ["r"], ["y"], perm=[0, 3, 1, 2]),
    ]
    made = model(nodes, {"x": [1, 3, 4, 5]}, ["y"], {"k": np.array([1, 2, 3], np.float32)})
    passes = {"repeat": ["sink-transposes", "merge-transposes", "remove-identities", "remove-dead"]}
    outcome = run_passes(made, passes)
    assert operators(outcome.model) == ["Mul", "Relu"]
    assert outcome.model.graph.output[0].name == "y"


def test_squeeze_and_unsqueeze_in_a_row_are_one_reshape_or_nothing(model: Any, run_passes: Any, operators: Any) -> None:
    nodes = [
        node("Squeeze", ["x", "a"], ["s"]),
        node("Unsqueeze", ["s", "b"], ["u"]),
        node("Flatten", ["u"], ["f"]),
        node("Relu", ["f"], ["y"]),
    ]
    made = model(nodes, {"x": [2, 1, 3]}, ["y"], {"a": np.array([1]), "b": np.array([0])})
    passes = ["merge-reshapes", "remove-dead"]
    assert operators(run_passes(made, *passes).model) == ["Reshape", "Relu"]


def test_a_reshape_to_a_computed_shape_becomes_one_to_a_constant(model: Any, run_passes: Any, operators: Any) -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Unsqueeze", ["n", "axis"], ["u"]),
        node("Concat", ["u", "rest"], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["y"]),
    ]
    constants = {"zero": np.int64(0), "axis": np.array([0]), "rest": np.array([-1, 2])}
    made = model(nodes, {"x": (F, ["batch", 4, "width"])}, ["y"], constants)
    outcome = run_passes(made, "fold-shapes", "remove-dead")
    assert operators(outcome.model) == ["Reshape"]
    (target,) = outcome.model.graph.initializer
    assert onnx.numpy_helper.to_array(target).tolist() == [0, -1, 2]


def test_sizes_decide_what_is_expanded_and_which_branch_is_taken(model: Any, run_passes: Any, operators: Any) -> None:
    """An older exporter asks at run time what the sizes say: is there a channel, is the axis 1, how wide is it."""
    then, other = (
        onnx.helper.make_graph([node(op, ["e"], [name])], name, [], [onnx.helper.make_tensor_value_info(name, F, None)])
        for op, name in (("Relu", "p"), ("Neg", "q"))
    )
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("ConstantOfShape", ["rank"], ["ones"], value=onnx.numpy_helper.from_array(np.array([1], np.int64))),
        node("Equal", ["s", "ones"], ["single"]),
        node("Where", ["single", "s", "s"], ["target"]),
        node("Expand", ["x", "target"], ["e"]),
        node("Gather", ["s", "last"], ["width"]),
        node("Mod", ["width", "two"], ["odd"]),
        node("Equal", ["odd", "zero"], ["even"]),
        node("If", ["even"], ["y"], then_branch=then, else_branch=other),
    ]
    constants = {"rank": np.array([2]), "last": np.int64(1), "two": np.int64(2), "zero": np.int64(0)}
    made = model(nodes, {"x": (F, ["batch", 4])}, ["y"], constants)
    outcome = run_passes(made, "fold-shapes", "inline-branches", "remove-identities", "remove-dead")
    assert operators(outcome.model) == ["Relu"]


def test_sizes_with_two_names_may_be_the_same(model: Any, run_passes: Any, operators: Any) -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Shape", ["z"], ["t"]),
        node("Equal", ["s", "t"], ["y"]),
    ]
    made = model(nodes, {"x": (F, ["n"]), "z": (F, ["m"])}, ["y"])
    assert operators(run_passes(made, "fold-shapes").model) == ["Shape", "Shape", "Equal"]


GELU = {"root": np.float32(np.sqrt(2)), "one": np.float32(1), "half": np.float32(0.5)}


def _gelu() -> list[onnx.NodeProto]:
    return [
        node("Div", ["x", "root"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["one", "e"], ["p"]),
        node("Mul", ["p", "x"], ["m"]),
        node("Mul", ["half", "m"], ["y"]),
    ]


def test_gelu_is_fused_from_the_operator_set_that_has_it(model: Any, run_passes: Any, operators: Any) -> None:
    assert operators(run_passes(model(_gelu(), {"x": [9]}, ["y"], GELU, opset=20), "fuse-gelu").model) == ["Gelu"]
    assert len(run_passes(model(_gelu(), {"x": [9]}, ["y"], GELU, opset=19), "fuse-gelu").model.graph.node) == 5


def test_a_part_of_a_pattern_that_something_else_reads_keeps_it_whole(model: Any, run_passes: Any) -> None:
    outcome = run_passes(model(_gelu(), {"x": [9]}, ["y", "e"], GELU, opset=20), "fuse-gelu")
    assert len(outcome.model.graph.node) == 5


def test_another_constant_is_no_match(model: Any, run_passes: Any) -> None:
    made = model(_gelu(), {"x": [9]}, ["y"], GELU | {"root": np.float32(1.4142)}, opset=20)
    assert len(run_passes(made, "fuse-gelu").model.graph.node) == 5


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("square", ["Pow", "Mul"])
def test_layer_normalization_is_fused(opset: int, square: str, model: Any, run_passes: Any, operators: Any) -> None:
    axes: dict[str, Any] = {"axes": [-1]} if opset < 18 else {}
    extra = [] if opset < 18 else ["axes"]
    nodes = [
        node("ReduceMean", ["x", *extra], ["m"], **axes),
        node("Sub", ["x", "m"], ["d"]),
        node(square, ["d", "two" if square == "Pow" else "d"], ["q"]),
        node("ReduceMean", ["q", *extra], ["v"], **axes),
        node("Add", ["v", "eps"], ["w"]),
        node("Sqrt", ["w"], ["r"]),
        node("Div", ["d", "r"], ["n"]),
        node("Mul", ["n", "g"], ["s"]),
        node("Add", ["s", "b"], ["y"]),
    ]
    constants = {"eps": np.float32(1e-3), "g": np.arange(4, dtype=np.float32), "b": np.ones(4, np.float32)}
    constants |= {"two": np.float32(2)} if square == "Pow" else {}
    constants |= {} if opset < 18 else {"axes": np.array([-1])}
    made = model(nodes, {"x": [3, 4]}, ["y"], constants, opset=opset)
    assert operators(run_passes(made, "fuse-layernorm").model) == ["LayerNormalization"]


def test_rms_normalization_and_silu_are_fused(model: Any, run_passes: Any, operators: Any) -> None:
    nodes = [
        node("Mul", ["x", "x"], ["q"]),
        node("ReduceMean", ["q", "axes"], ["v"]),
        node("Add", ["v", "eps"], ["w"]),
        node("Sqrt", ["w"], ["r"]),
        node("Div", ["x", "r"], ["n"]),
        node("Mul", ["n", "g"], ["s"]),
        node("Sigmoid", ["s"], ["e"]),
        node("Mul", ["s", "e"], ["y"]),
    ]
    constants = {"eps": np.float32(1e-3), "g": np.arange(4, dtype=np.float32), "axes": np.array([-1])}
    made = model(nodes, {"x": [3, 4]}, ["y"], constants, opset=24)
    made.ir_version = 11
    outcome = run_passes(made, "fuse-rmsnorm", "fuse-silu")
    assert operators(outcome.model) == ["RMSNormalization", "Swish"]


@pytest.mark.parametrize("op", ["LayerNormalization", "Gelu", "HardSwish", "Celu"])
def test_a_function_of_the_standard_is_spelt_out(op: str, model: Any, run_passes: Any, operators: Any) -> None:
    inputs = ["x", "g"] if op == "LayerNormalization" else ["x"]
    made = model([node(op, inputs, ["y"])], {"x": [2, 3, 4, 4]}, ["y"], {"g": np.ones(4, np.float32)}, opset=21)
    outcome = run_passes(made, {"decompose-functions": {"operators": [op]}})
    assert op not in operators(outcome.model)
    assert outcome.unverified == {}


def test_a_primitive_operator_cannot_be_spelt_out(model: Any, run_passes: Any) -> None:
    made = model([node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"])
    with pytest.raises(PassError, match="'Conv': a primitive operator"):
        run_passes(made, {"decompose-functions": {"operators": ["Conv"]}})


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("extras", [False, True])
def test_recurrent_operators_are_unrolled(
    kind: str, direction: str, extras: bool, model: Any, run_passes: Any, operators: Any
) -> None:
    random = np.random.default_rng(3)
    gates, ways, hidden = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], 1 + (direction == "bidirectional"), 3
    constants = {
        "w": random.normal(size=(ways, gates * hidden, 2)).astype(np.float32),
        "r": random.normal(size=(ways, gates * hidden, hidden)).astype(np.float32),
    }
    inputs, outputs = ["x", "w", "r"], ["all", "last"] + ["cell"] * (kind == "LSTM")
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    fed: dict[str, Any] = {"x": [4, 2, 2]}
    if extras:
        constants["b"] = random.normal(size=(ways, 2 * gates * hidden)).astype(np.float32)
        inputs += ["b", "", "h"] + ["c"] * (kind == "LSTM")
        fed |= {name: [ways, 2, hidden] for name in ("h", "c")[: 1 + (kind == "LSTM")]}
        if kind == "GRU":
            attributes["linear_before_reset"] = 1
    made = model([node(kind, inputs, outputs, **attributes)], fed, outputs, constants)
    outcome = run_passes(made, "unroll-recurrent", "remove-dead")
    assert kind not in operators(outcome.model)
    assert outcome.unverified == {}


@pytest.mark.parametrize("peephole", [False, True])
@pytest.mark.parametrize("attributes", [{"clip": 0.2}, {"input_forget": 1}, {"activations": ["Softsign"] * 3}], ids=str)
def test_an_lstm_with_all_that_the_operator_has_is_unrolled(
    peephole: bool, attributes: Any, model: Any, run_passes: Any, operators: Any
) -> None:
    random = np.random.default_rng(5)
    shapes = {"w": (1, 12, 2), "r": (1, 12, 3), "b": (1, 24), "p": (1, 9)}
    constants = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    constants["lengths"] = np.array([4, 4], np.int32)
    names = ["x", "w", "r", "b", "lengths", "h", "c", *(["p"] if peephole else [])]
    constants = {name: array for name, array in constants.items() if name in names}
    lstm = node("LSTM", names, ["all", "last", "cell"], hidden_size=3, **attributes)
    made = model([lstm], {"x": [4, 2, 2], "h": [1, 2, 3], "c": [1, 2, 3]}, ["all", "last", "cell"], constants)
    outcome = run_passes(made, "unroll-recurrent", "remove-dead")
    assert "LSTM" not in operators(outcome.model)
    assert outcome.unverified == {}


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_the_batch_first_layout_is_unrolled(kind: str, model: Any, run_passes: Any, operators: Any) -> None:
    from onnx.reference import ReferenceEvaluator

    random = np.random.default_rng(6)
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    constants = {
        "w": random.normal(size=(1, gates * 3, 2)).astype(np.float32),
        "r": random.normal(size=(1, gates * 3, 3)).astype(np.float32),
    }
    made = model([node(kind, ["x", "w", "r"], ["", "y"], hidden_size=3, layout=1)], {"x": [5, 4, 2]}, ["y"], constants)
    outcome = run_passes(made, "unroll-recurrent", "remove-dead")
    assert kind not in operators(outcome.model)
    assert "does not run" in outcome.unverified["unroll-recurrent"]  # ONNX Runtime has no such layout
    fed = {"x": random.normal(size=(5, 4, 2)).astype(np.float32)}
    (want,), (got,) = ReferenceEvaluator(made).run(None, fed), ReferenceEvaluator(outcome.model).run(None, fed)
    assert want.shape == (5, 1, 3)
    assert_same_sums(got, want, terms=4 * (2 + 3))


def test_a_longer_sequence_stays_recurrent(model: Any, run_passes: Any, operators: Any) -> None:
    constants = {"w": np.ones((1, 2, 2), np.float32), "r": np.ones((1, 2, 2), np.float32)}
    made = model([node("RNN", ["x", "w", "r"], ["y"], hidden_size=2)], {"x": [5, 1, 2]}, ["y"], constants)
    assert operators(run_passes(made, {"unroll-recurrent": {"max_steps": 4}}).model) == ["RNN"]


def test_a_branch_that_is_always_taken_takes_the_place_of_its_if(model: Any, run_passes: Any, operators: Any) -> None:
    value = helper.make_tensor_value_info("made", F, [2])
    kept = helper.make_graph([node("Neg", ["x"], ["n"]), node("Abs", ["n"], ["made"])], "t", [], [value])
    other = helper.make_graph([node("Relu", ["x"], ["made"])], "e", [], [value])
    nodes = [node("If", ["k"], ["i"], then_branch=kept, else_branch=other), node("Exp", ["i"], ["y"])]
    made = model(nodes, {"x": [2]}, ["y"], {"k": np.array(True)})
    assert operators(run_passes(made, "inline-branches").model) == ["Neg", "Abs", "Exp"]


def test_calls_of_local_functions_are_inlined(model: Any, run_passes: Any, operators: Any) -> None:
    body = helper.make_function(
        "my", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    made = model([node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"])
    made.graph.node[0].op_type, made.graph.node[0].domain = "Twice", "my"
    made.functions.append(body)
    made.opset_import.append(helper.make_opsetid("my", 1))
    outcome = run_passes(made, "inline-functions")
    assert operators(outcome.model) == ["Add"]
    assert not outcome.model.functions


@pytest.mark.parametrize("version", [13, 15, 18, 21])
def test_a_model_is_converted_up_and_down(version: int, model: Any, run_passes: Any) -> None:
    made = model([node("ReduceMean", ["x"], ["m"], axes=[1]), node("Softmax", ["m"], ["y"])], {"x": [2, 3]}, ["y"])
    outcome = run_passes(made, {"convert-opset": {"version": version}})
    assert outcome.model.opset_import[0].version == version
    assert outcome.unverified == {}


def test_a_conversion_that_is_not_possible_is_refused(model: Any, run_passes: Any) -> None:
    made = model([node("Gelu", ["x"], ["y"])], {"x": [2]}, ["y"], opset=20)
    with pytest.raises(PassError, match="a model that can be written in operator set 9, from 20"):
        run_passes(made, {"convert-opset": {"version": 9}})


@pytest.mark.parametrize(("old", "new"), [("batch", 4), (2, 1), (2, 5)])
def test_the_batch_size_changes_at_the_interface(old: int | str, new: int, model: Any, run_passes: Any) -> None:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])]
    made = model(nodes, {"x": (F, [old, 3])}, ["y"], {"w": np.eye(3, dtype=np.float32)})
    outcome = run_passes(made, {"set-batch-size": {"size": new}}, "remove-dead")
    assert outcome.model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == new
    assert outcome.history[0].finding["verified"]


def test_a_batch_size_below_one_is_refused(model: Any, run_passes: Any) -> None:
    with pytest.raises(ModelError, match="a batch size of at least 1"):
        run_passes(model([node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"]), {"set-batch-size": {"size": 0}})


def test_channels_move_at_the_interface(model: Any, run_passes: Any, operators: Any) -> None:
    nodes = [node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]), node("GlobalMaxPool", ["t"], ["y"])]
    made = model(nodes, {"x": [1, 5, 6, 3]}, ["y"])
    change = {"change-layout": {"change": "nhwc-to-nchw", "values": ["x"]}}
    outcome = run_passes(made, change, "merge-transposes", "remove-identities", "remove-dead")
    assert operators(outcome.model) == ["GlobalMaxPool"]
    assert [dim.dim_value for dim in outcome.model.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 5, 6]
    assert outcome.unverified == {}


def test_a_layout_change_of_an_output_and_its_refusals(model: Any, run_passes: Any) -> None:
    made = model([node("Relu", ["x"], ["y"])], {"x": [1, 3, 5, 6]}, ["y"])
    both = {"change-layout": {"change": "nchw-to-nhwc", "values": ["x", "y"]}}
    outcome = run_passes(made, both)
    assert [dim.dim_value for dim in outcome.model.graph.output[0].type.tensor_type.shape.dim] == [1, 5, 6, 3]
    with pytest.raises(ConfigError, match="expected a layout change"):
        run_passes(made, {"change-layout": {"change": "nchw", "values": ["x"]}})
    with pytest.raises(ConfigError, match="expected a input or output: x, y"):
        run_passes(made, {"change-layout": {"change": "nchw-to-nhwc", "values": ["z"]}})


def test_an_input_is_taken_in_another_type(model: Any, run_passes: Any, operators: Any) -> None:
    made = model([node("Relu", ["x"], ["y"])], {"x": [7]}, ["y"])
    outcome = run_passes(made, {"change-input-dtype": {"values": ["x"], "dtype": "uint8"}})
    assert operators(outcome.model) == ["Cast", "Relu"]
    assert outcome.model.graph.input[0].type.tensor_type.elem_type == TensorProto.UINT8
    assert outcome.unverified == {}


def test_ranges_hold_for_what_is_computed(model: Any, run_passes: Any) -> None:
    nodes = [
        node("Sigmoid", ["x"], ["s"]),
        node("Conv", ["s", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        node("Clip", ["c", "", "six"], ["k"]),
        node("Sub", ["k", "s1"], ["y"]),
    ]
    random = np.random.default_rng(0)
    constants = {
        "w": random.normal(size=(2, 2, 3, 3)),
        "b": random.normal(size=2),
        "six": np.array(6),
        "s1": np.array(1),
    }
    arrays = {name: array.astype(np.float32) for name, array in constants.items()}
    made = model(nodes, {"x": [1, 2, 4, 4]}, ["s", "c", "k", "y"], arrays)
    ranges = run_passes(made, "annotate-ranges").findings["ranges"]
    assert ranges["s"][0] == 0.0
    assert 1.0 <= ranges["s"][1] < 1.001
    from forge_pipeline.ir.reference.interpreter import Interpreter

    for seed in range(20):
        fed = {"x": np.random.default_rng(seed).normal(size=(1, 2, 4, 4)).astype(np.float32) * 100}
        for name, array in Interpreter(made, prepack=False)(fed).items():
            assert ranges[name][0] <= array.min() <= array.max() <= ranges[name][1]


def test_a_convolution_in_two_halves_has_a_weight_scale_each(model: Any, run_passes: Any, operators: Any) -> None:
    random = np.random.default_rng(8)
    weight = random.normal(size=(6, 3, 3, 3)).astype(np.float32)
    weight[4:] *= 100
    nodes = [node("Conv", ["x", "w", "b"], ["c"]), node("Relu", ["c"], ["y"])]
    made = model(nodes, {"x": [1, 3, 5, 5]}, ["y"], {"w": weight, "b": random.normal(size=6).astype(np.float32)})
    outcome = run_passes(made, "split-tensors", "remove-dead")
    assert operators(outcome.model) == ["Conv", "Conv", "Concat", "Relu"]
    sizes = [list(t.dims) for t in outcome.model.graph.initializer if len(t.dims) == 4]
    assert sorted(sizes) == [[2, 3, 3, 3], [4, 3, 3, 3]]
    assert outcome.unverified == {}
    again = run_passes(outcome.model, "split-tensors")
    assert again.history[0].changes == 0


def test_cleaning_up_is_one_pass_of_several(model: Any, run_passes: Any, operators: Any) -> None:
    nodes = [
        node("Add", ["k", "k"], ["two"]),
        node("Mul", ["x", "one"], ["a"]),
        node("Mul", ["a", "two"], ["b"]),
        node("Mul", ["x", "two"], ["c"]),
        node("Sub", ["b", "c"], ["y"]),
        node("Exp", ["x"], ["unused"]),
    ]
    made = model(nodes, {"x": [4]}, ["y"], {"k": np.float32(1), "one": np.float32(1)})
    outcome = run_passes(made, "cleanup")
    assert operators(outcome.model) == ["Mul", "Sub"]
    assert [row.name for row in outcome.history] == ["cleanup"]
    assert outcome.unverified == {}


@pytest.mark.parametrize(("amount", "left"), [(1, ["AveragePool"]), (2, ["Pad", "AveragePool"])])
def test_a_pad_as_wide_as_a_pooling_window_stays(
    amount: int, left: list[str], model: Any, run_passes: Any, operators: Any
) -> None:
    nodes = [node("Pad", ["x", "p"], ["a"]), node("AveragePool", ["a"], ["y"], kernel_shape=[2, 2])]
    made = model(nodes, {"x": [1, 2, 4, 4]}, ["y"], {"p": np.array([0, 0, 1, amount, 0, 0, 0, amount])})
    assert operators(run_passes(made, "fold-pad").model) == left
