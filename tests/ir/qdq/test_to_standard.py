"""com.microsoft's operators, written out in ONNX's own: the same numbers in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from forge_pipeline.ir.canonical import canonical_model
from forge_pipeline.ir.contrib.signature import LEAST_INPUTS
from forge_pipeline.ir.contrib.table import OWN_NAMES
from forge_pipeline.ir.qdq.qoperator import RULES
from forge_pipeline.ir.qdq.rounded_lstm import read
from forge_pipeline.ir.qdq.to_standard import in_standard, kept
from forge_pipeline.ir.reference.interpreter import Interpreter
from tests.support.microsoft import (
    MICROSOFT,
    Arrays,
    assert_same_results,
    model,
    own,
    weight_in_blocks,
    with_open_sizes,
)
from tests.support.sums import assert_close


def results(model: onnx.ModelProto, feeds: Arrays) -> list[Any]:
    return list(Interpreter(model)(feeds).values())


def check(model: onnx.ModelProto, feeds: Arrays, *, within: float = 1e-5, step: float = 0) -> onnx.ModelProto:
    """Compare a model with what it is written out as, and return that, checked and without what nobody reads."""
    written = canonical_model(in_standard(model))
    assert {entry.domain for entry in written.opset_import} == {""}
    outputs = zip(written.graph.output, results(written, feeds), results(model, feeds), strict=True)
    for value, found, wanted in outputs:
        assert len(np.unique(wanted)) > 3
        assert_close(found, wanted, within=within, step=step)
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, wanted.shape))
    onnx.checker.check_model(written, full_check=True)
    return written


FUSED: dict[str, tuple[list[str], list[str], dict[str, Any]]] = {
    "BiasGelu": (["x", "bias"], ["y"], {}),
    "FastGelu": (["x", "bias"], ["y"], {}),
    "FusedConv": (["image", "filters", "bias", "other"], ["y"], {"activation": "Relu", "pads": [1] * 4}),
    "FusedGemm": (["x", "w", "bias"], ["y"], {"activation": "LeakyRelu", "activation_alpha": 0.25, "transB": 1}),
    "FusedMatMul": (["x", "w"], ["y"], {"transB": 1, "alpha": 0.3}),
    "Gelu": (["x"], ["y"], {}),
    "QuickGelu": (["x"], ["y"], {"alpha": 1.702}),
    "SkipLayerNormalization": (["x", "w", "gamma", "beta", "bias"], ["y", "", "", "sum"], {"epsilon": 1e-5}),
}


@pytest.mark.parametrize("operator", FUSED)
@pytest.mark.parametrize("opset", [14, 18])
def test_what_an_optimizer_fused_is_what_it_was_fused_from(operator: str, opset: int) -> None:
    random: Any = np.random.default_rng(1)
    shapes = {
        "x": (8, 8), "w": (8, 8), "bias": (8,), "gamma": (8,), "beta": (8,),
        "image": (1, 3, 5, 5), "filters": (8, 3, 3, 3), "other": (1, 8, 5, 5),
    }  # fmt: skip
    inputs, outputs, attributes = FUSED[operator]
    arrays = {name: random.standard_normal(shapes[name]).astype(np.float32) for name in inputs}
    feeds = {name: arrays.pop(name) for name in inputs[:1]}
    named = [name for name in outputs if name]
    net = model([own(operator, inputs, outputs, **attributes)], feeds, arrays, *named, opset=opset)
    check(net, feeds)


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from([4, 8]), st.sampled_from([16, 32, 64, 128]), st.integers(1, 150), st.booleans(), st.booleans(),
    st.sampled_from([17, 21]),
)  # fmt: skip
def test_weights_of_few_bits_are_those_that_onnx_runtime_multiplies_by(
    bits: int, size: int, depth: int, has_zeros: bool, has_bias: bool, opset: int
) -> None:
    random: Any = np.random.default_rng(depth)
    columns, blocks = 5, -(-depth // size)
    constants = {
        "b": random.integers(0, 256, (columns, blocks, size * bits // 8)).astype(np.uint8),
        "s": random.uniform(0.01, 0.02, (columns, blocks)).astype(np.float32),
    }
    if has_zeros:
        constants["z"] = random.integers(0, 256, (columns, -(-blocks * bits // 8))).astype(np.uint8)
    if has_bias:
        constants["c"] = random.standard_normal(columns).astype(np.float32)
    names = ["a", "b", "s", "z" if has_zeros else "", "", "c" if has_bias else ""]
    node = own("MatMulNBits", names, ["y"], K=depth, N=columns, bits=bits, block_size=size)
    feeds = {"a": random.standard_normal((3, depth)).astype(np.float32)}
    written = check(model([node], feeds, constants, "y", opset=opset), feeds, within=2e-5)
    stored = {tensor.data_type for tensor in written.graph.initializer}
    assert {4: TensorProto.UINT4, 8: TensorProto.UINT8}[bits] in stored


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("level", [0, 1, 4])
def test_activations_are_rounded_in_blocks_where_the_accuracy_level_permits_it(
    level: int, bits: int, dtype: Any
) -> None:
    random: Any = np.random.default_rng(4)
    constants: Arrays = {
        "w": random.integers(0, 256, (6, 4, 2 * bits)).astype(np.uint8),
        "s": random.uniform(0.01, 0.02, (6, 4)).astype(dtype),
    }
    attributes = {"K": 64, "N": 6, "bits": bits, "block_size": 16, "accuracy_level": level}
    node = own("MatMulNBits", ["x", "w", "s"], ["y"], **attributes)
    feeds = [{"x": random.standard_normal((rows, 64)).astype(dtype)} for rows in (2, 3)]
    net = with_open_sizes([node], feeds, constants, ["y" if dtype == np.float32 else "y:FLOAT16"])
    assert_same_results(net, feeds, within=1e-5 if dtype == np.float32 else 4e-3)
    operators = [item.op_type for item in in_standard(net).graph.node]
    assert operators.count("QuantizeLinear") == (level == 4)


@pytest.mark.parametrize("depth", [20, 40, 47])
def test_rows_that_are_no_whole_blocks_are_rounded_in_blocks_too(depth: int) -> None:
    random: Any = np.random.default_rng(depth)
    blocks = -(-depth // 16)
    constants: Arrays = {
        "w": random.integers(0, 256, (6, blocks, 8)).astype(np.uint8),
        "s": random.uniform(0.01, 0.02, (6, blocks)).astype(np.float32),
    }
    attributes = {"K": depth, "N": 6, "bits": 4, "block_size": 16, "accuracy_level": 4}
    feeds = [{"x": random.standard_normal((rows, depth)).astype(np.float32)} for rows in (2, 3)]
    net = with_open_sizes([own("MatMulNBits", ["x", "w", "s"], ["y"], **attributes)], feeds, constants, ["y"])
    assert_same_results(net, feeds, within=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("order", ["", "as stored", "another"])
@pytest.mark.parametrize("zeros", ["", "bytes", "floats"])
def test_weights_of_few_bits_in_other_forms(zeros: str, order: str, dtype: Any) -> None:
    random: Any = np.random.default_rng(8)
    depth, columns, size = 64, 6, 16
    constants: Arrays = {
        "w": random.integers(0, 256, (columns, 4, 8)).astype(np.uint8),
        "s": random.uniform(0.01, 0.02, (columns, 4)).astype(dtype),
        "b": random.standard_normal(columns).astype(dtype),
    }
    if zeros:
        numbers = random.integers(0, 16, (columns, 4)).astype(dtype)
        constants["z"] = numbers if zeros == "floats" else random.integers(0, 256, (columns, 2)).astype(np.uint8)
    if order:
        groups = (np.arange(depth) // size).astype(np.int32)
        constants["g"] = groups if order == "as stored" else random.permutation(groups)
    names = ["x", "w", "s", *(name if name in constants else "" for name in "zg"), "b"]
    node = own("MatMulNBits", names, ["y"], K=depth, N=columns, bits=4, block_size=size)
    feeds = [{"x": random.standard_normal((rows, depth)).astype(dtype)} for rows in (2, 3)]
    net = with_open_sizes([node], feeds, constants, ["y" if dtype == np.float32 else "y:FLOAT16"])
    if order and zeros == "bytes":
        assert "does not read" in kept(in_standard(net))["y"]
    else:
        assert_same_results(net, feeds, within=1e-5 if dtype == np.float32 else 4e-3)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("depth", [32, 40])
def test_weights_of_four_bits_that_name_floats(depth: int, kind: int) -> None:
    random: Any = np.random.default_rng(9)
    columns = 6
    blocks = -(-columns * depth // 16)
    constants = {
        "w": random.integers(0, 256, columns * depth // 2).astype(np.uint8),
        "s": random.uniform(0.5, 1, blocks).astype(np.float32),
    }
    node = own("MatMulBnb4", ["x", "w", "s"], ["y"], K=depth, N=columns, block_size=16, quant_type=kind)
    feeds = [{"x": random.standard_normal((rows, depth)).astype(np.float32)} for rows in (2, 3)]
    assert_same_results(with_open_sizes([node], feeds, constants, ["y"]), feeds)


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4, TensorProto.UINT8])
@pytest.mark.parametrize(("depth", "has_zeros"), [(64, False), (52, True)])
def test_rows_of_a_table_of_four_bits_are_gathered(kind: int, depth: int, has_zeros: bool) -> None:
    random: Any = np.random.default_rng(2)
    low = -8 if kind == TensorProto.INT4 else 0
    steps, zeros = (random.integers(low, low + 16, shape) for shape in ((20, depth), (20, 4)))
    feeds = {"i": np.array([[3, 0], [19, 3]])}
    names = ["t", "i", "s", *["z"] * has_zeros]
    node = own("GatherBlockQuantized", names, ["y"], gather_axis=0, quantize_axis=1, block_size=16)
    scales = random.uniform(0.01, 0.02, (20, 4)).astype(np.float32)
    if kind == TensorProto.UINT8:  # two in a byte
        steps, zeros = ((part[:, ::2] | part[:, 1::2] << 4).astype(np.uint8) for part in (steps, zeros))
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    constants = {"t": steps.astype(dtype), "s": scales, **({"z": zeros.astype(dtype)} if has_zeros else {})}
    check(model([node], feeds, constants, "y", opset=21), feeds, within=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_table_shares_its_bytes_with_a_product_that_has_them_in_another_shape(bits: int) -> None:
    """As decoders do whose last layer is the table of their tokens."""
    random: Any = np.random.default_rng(3)
    in_byte = 8 // bits
    constants = {
        "w": random.integers(0, 256, (20, 2, 32 // in_byte)).astype(np.uint8),
        "s": random.uniform(0.01, 0.02, (20, 2)).astype(np.float32),
        "shape": np.array([20, 64 // in_byte]),
    }
    quantized = {"block_size": 32, "bits": bits}
    nodes = [
        helper.make_node("Reshape", ["w", "shape"], ["t"]),
        own("GatherBlockQuantized", ["t", "i", "s"], ["x"], gather_axis=0, quantize_axis=1, **quantized),
        own("MatMulNBits", ["x", "w", "s"], ["y"], K=64, N=20, **quantized),
    ]
    feeds = {"i": np.array([[3, 0], [19, 3]])}
    check(model(nodes, feeds, constants, "y", opset=21), feeds, within=1e-5)


def test_operators_with_channels_last_transpose_nothing_between_them() -> None:
    random: Any = np.random.default_rng(3)
    feeds = {"x": (random.standard_normal((1, 4, 9, 9)) * 20).astype(np.float32)}
    constants = {
        "s": np.float32(0.25), "z": np.uint8(120), "t": np.float32(4), "ws": np.full(4, 0.125, np.float32),
        "w": random.integers(0, 256, (4, 4, 3, 3)).astype(np.uint8), "wz": np.full(4, 128, np.uint8),
    }  # fmt: skip
    affine, weight, out = ["s", "z"], ["w", "ws", "wz"], ["t", "z"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *affine], ["q"]),
        helper.make_node("Transpose", ["q"], ["last"], perm=[0, 2, 3, 1]),
        own("QLinearConv", ["last", *affine, *weight, *out], ["a"], channels_last=1, pads=[1] * 4),
        own("QLinearConv", ["a", *out, *weight, *out], ["b"], channels_last=1, pads=[1] * 4),
        own("QLinearAdd", ["a", *out, "b", *out, *out], ["c"]),
        own("QLinearLeakyRelu", ["c", *out, *out], ["d"], alpha=0.5),
        own("QLinearConcat", [*out, "d", *out, "a", *out], ["e"], axis=3),
        own("NhwcMaxPool", ["e"], ["f"], kernel_shape=[2, 2], strides=[2, 2]),
        own("QLinearAveragePool", ["f", *out, *out], ["g"], channels_last=1, kernel_shape=[2, 2]),
        helper.make_node("Transpose", ["g"], ["first"], perm=[0, 3, 1, 2]),
        helper.make_node("DequantizeLinear", ["first", *out], ["y"]),
    ]
    written = check(model(nodes, feeds, constants, "y", opset=17), feeds, step=4)
    assert "Transpose" not in {node.op_type for node in written.graph.node}


def quantized_lstm(*, per_row: bool, dtype: Any = np.int8, outputs: tuple[str, ...] = ("y",), **more: Any) -> Any:
    """Return a node of a layer in both directions, its constants and its input; no pair of weights saturates."""
    random: Any = np.random.default_rng(4)
    steps, inputs, hidden = 6, 12, 8
    constants: Arrays = {"bias": (random.standard_normal((2, 8 * hidden)) / 10).astype(np.float32)}
    zero = 128 if dtype == np.uint8 else 0
    for name, rows in (("w", inputs), ("r", hidden)):
        shape = (2, 4 * hidden) if per_row else (2,)
        constants[name] = (random.integers(-60, 61, (2, rows, 4 * hidden)) + zero).astype(dtype)
        constants[f"{name}s"] = random.uniform(0.003, 0.006, shape).astype(np.float32)
        constants[f"{name}z"] = np.full(shape, zero, dtype)
    names = ["x", "w", "r", "bias", "", "", "", more.pop("peepholes", ""), "ws", "wz", "rs", "rz"]
    node = own("DynamicQuantizeLSTM", names, list(outputs), hidden_size=hidden, direction="bidirectional", **more)
    return node, constants, {"x": random.standard_normal((steps, 2, inputs)).astype(np.float32)}


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_a_quantized_lstm_rounds_its_state_as_onnx_runtime_does(per_row: bool, dtype: Any) -> None:
    node, constants, feeds = quantized_lstm(per_row=per_row, dtype=dtype)
    net = model([node], feeds, constants, "y", opset=17)
    written = check(net, feeds, within=1e-6)
    shapes = {tensor.name: tuple(tensor.dims) for tensor in written.graph.initializer}
    scans = [node for node in written.graph.node if node.op_type == "Scan"]
    assert [step.is_reverse for scan in scans if (step := read(scan, shapes, 17))] == [False, True]


@pytest.mark.parametrize("what", ["peepholes", "clip"])
def test_a_quantized_lstm_of_another_kind_differs_by_the_rounding_of_its_state(what: str) -> None:
    more: dict[str, Any] = {"peepholes": "p"} if what == "peepholes" else {"clip": 0.3}
    node, constants, feeds = quantized_lstm(per_row=False, **more)
    constants |= {"p": np.full((2, 24), 0.1, np.float32)} if what == "peepholes" else {}
    written = check(model([node], feeds, constants, "y", opset=17), feeds, step=8e-3)  # of a state between -1 and 1
    assert "LSTM" in {node.op_type for node in written.graph.node}


@pytest.mark.parametrize("change", ["sum", "activation", "order"])
def test_a_scan_that_computes_something_else_is_not_read_as_a_quantized_lstm(change: str) -> None:
    node, constants, feeds = quantized_lstm(per_row=False)
    written = canonical_model(in_standard(model([node], feeds, constants, "y", opset=17)))
    shapes = {tensor.name: tuple(tensor.dims) for tensor in written.graph.initializer}
    scan = next(node for node in written.graph.node if node.op_type == "Scan")
    (body,) = (item.g for item in scan.attribute if item.name == "body")
    if change == "order":
        split = next(node for node in body.node if node.op_type == "Split")
        split.output[0], split.output[1] = split.output[1], split.output[0]
    else:
        old, new = ("Add", "Sub") if change == "sum" else ("Tanh", "Softsign")
        next(node for node in body.node if node.op_type == old).op_type = new
    assert read(scan, shapes, 17) is None


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_model_of_an_older_operator_set_is_written_in_one_that_has_what_it_takes(per_channel: bool) -> None:
    random: Any = np.random.default_rng(5)
    feeds = {"x": (random.standard_normal((1, 4, 6, 6)) * 20).astype(np.float32)}
    scale = np.full(6, 0.125, np.float32) if per_channel else np.float32(0.125)
    constants = {
        "s": np.float32(0.25), "z": np.uint8(120), "t": np.float32(4), "ws": scale,
        "w": random.integers(0, 256, (6, 4, 3, 3)).astype(np.uint8), "wz": np.full_like(scale, 128, np.uint8),
    }  # fmt: skip
    affine, out = ["s", "z"], ["t", "z"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *affine], ["q"]),
        helper.make_node("QLinearConv", ["q", *affine, "w", "ws", "wz", *out], ["a"]),
        own("QLinearAdd", ["a", *out, "a", *out, *out], ["b"]),
        helper.make_node("DequantizeLinear", ["b", *out], ["real"]),
        helper.make_node("Softmax", ["real"], ["soft"], axis=1),  # of operator set 12: over all that follows
        helper.make_node("Unsqueeze", ["soft"], ["y"], axes=[0]),
    ]
    written = check(model(nodes, feeds, constants, "y", opset=12), feeds)
    assert written.opset_import[0].version == 13


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16])
def test_pairs_of_words_are_written_in_an_operator_set_that_has_them(dtype: Any) -> None:
    random: Any = np.random.default_rng(10)
    constants = {"s": np.float32(0.001), "z": dtype(100)}
    nodes = [own("QuantizeLinear", ["x", "s", "z"], ["q"]), own("DequantizeLinear", ["q", "s", "z"], ["y"])]
    feeds = [{"x": random.standard_normal((rows, 4)).astype(np.float32)} for rows in (2, 3)]
    written = assert_same_results(with_open_sizes(nodes, feeds, constants, ["y"], opset=13), feeds)
    assert written.opset_import[0].version == (13 if dtype == np.uint8 else 21)


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("axis", [-1, 1, 2])
def test_a_softmax_of_bytes_is_over_the_axes_that_its_operator_set_means(axis: int, opset: int) -> None:
    random: Any = np.random.default_rng(12)
    constants = {"s": np.float32(0.05), "z": np.uint8(100), "t": np.float32(1 / 256), "o": np.uint8(0)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        own("QLinearSoftmax", ["q", "s", "z", "t", "o"], ["p"], axis=axis, opset=opset),
        helper.make_node("DequantizeLinear", ["p", "t", "o"], ["y"]),
    ]
    feeds = [{"x": random.standard_normal((rows, 3, 4)).astype(np.float32)} for rows in (2, 3)]
    assert_same_results(with_open_sizes(nodes, feeds, constants, ["y"], opset=opset), feeds, step=1 / 256)


def test_a_form_that_cannot_be_written_out_is_refused_with_its_reason() -> None:
    constants = {"s": np.float32(0.05), "z": np.uint8(100)}
    names = ["x", "s", "z", "s", "z"]
    node = own("QLinearAveragePool", names, ["y"], channels_last=1, kernel_shape=[2])
    net = model([node], {"x": np.ones((1, 4, 8), np.uint8)}, constants, "y", opset=17)
    assert kept(in_standard(net)) == {"y": "channels last, over other than two axes"}


def test_what_cannot_be_written_out_leaves_the_whole_model_as_it_was() -> None:
    feeds = {"x": np.ones((2, 3), np.float32)}
    nodes = [own("Gelu", ["x"], ["g"]), own("SampleOp", ["g"], ["y"])]
    net = model(nodes, feeds, {}, "y", opset=12)
    assert in_standard(net) is net


def test_onnx_runtimes_operators_without_their_operator_set_are_known() -> None:
    """NNCF writes them so."""
    net = weight_in_blocks(18)
    del net.opset_import[1]
    written = canonical_model(in_standard(net))
    assert written.opset_import[0].version == 21
    feeds: Arrays = {"x": np.random.default_rng(7).standard_normal((2, 16)).astype(np.float32)}
    assert_close(results(written, feeds)[0], results(weight_in_blocks(18), feeds)[0], within=1e-5)


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": ["x"]},
        {"inputs": ["x", "w"]},
        {"K": None},
        {"K": -1},
        {"N": 7},
        {"block_size": 0},
        {"block_size": 32},
        {"bits": 3},
        {"w": np.zeros((8, 1, 7), np.uint8)},
        {"w": np.zeros((8, 1, 8), np.float32)},
        {"s": np.zeros(3, np.float32)},
    ],
)
def test_damaged_weights_in_blocks_stay_as_they_are(opset: int, changes: Arrays) -> None:
    net = weight_in_blocks(opset, **changes)
    assert {node.op_type for node in in_standard(net).graph.node} == {"MatMulNBits"}


@given(st.sampled_from(sorted(LEAST_INPUTS)), st.data())
@settings(max_examples=60, deadline=None)
def test_an_operator_with_too_few_inputs_stays_as_it_is(operator: str, data: st.DataObject) -> None:
    inputs = [f"x{place}" for place in range(data.draw(st.integers(0, LEAST_INPUTS[operator] - 1)))]
    constants = {name: np.ones((2, 2), np.uint8) for name in inputs}
    net = model([own(operator, inputs, ["y"])], {}, constants, "y", opset=data.draw(st.sampled_from([12, 18, 21])))
    assert [node.op_type for node in in_standard(net).graph.node] == [operator]


def test_the_inputs_that_operators_need_are_those_of_onnx_runtimes_schemas() -> None:
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    schemas = {item.name: item for item in runtime.get_all_operator_schema() if item.domain == MICROSOFT}
    known = {name: count for name, count in LEAST_INPUTS.items() if name not in OWN_NAMES}
    assert {name: schemas[name].min_input for name in known} == known
    assert {name for domain, name in RULES if domain == MICROSOFT} == set(LEAST_INPUTS)
