"""Operators of com.microsoft, written out: the same numbers in ONNX Runtime, at two sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from forge_pipeline.ir.contrib.activations import FUSED, SCALED
from forge_pipeline.ir.qdq.to_standard import in_standard
from forge_pipeline.ir.reference.interpreter import Interpreter
from tests.support.microsoft import MICROSOFT, Arrays, assert_same_results, own, with_open_sizes


def floats(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(seed: int, low: int, high: int, *shape: int, dtype: Any = np.int64) -> Any:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


NUMBERS = {"Clip": [-0.5, 0.7], "HardSigmoid": [0.25, 0.4], "Selu": [1.6, 1.1]}
"""Parameters of activations, 0.3 and 0.8 for the others."""

BEHIND_CONVOLUTIONS = ("Clip", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Tanh")
"""Activations that ONNX Runtime's kernel knows; its optimizers may come to fuse others."""


@pytest.mark.parametrize("activation", [*FUSED, *SCALED])
def test_any_activation_may_follow_a_product(activation: str) -> None:
    feeds = [{"x": floats(4, size, 6)} for size in (3, 5)]
    constants = {"w": floats(5, 8, 6), "b": floats(6, 8)}
    names = ("alpha", "gamma") if activation == "Selu" else ("alpha", "beta")
    numbers = zip(names, NUMBERS.get(activation, [0.3, 0.8]), strict=True)
    attributes: dict[str, Any] = {f"activation_{name}": number for name, number in numbers}
    node = own("FusedGemm", ["x", "w", "b"], ["y"], activation=activation, transB=1, alpha=0.5, **attributes)
    assert_same_results(with_open_sizes([node], feeds, constants, ["y"]), feeds)


@pytest.mark.parametrize("activation", [*FUSED, "Clip", "HardSwish", "Mish"])
def test_any_activation_may_follow_a_convolution(activation: str) -> None:
    feeds = [{"x": floats(1, 2, 3, size, size)} for size in (6, 9)]
    constants = {"w": floats(2, 4, 3, 3, 3), "b": floats(3, 4)}
    numbers = NUMBERS.get(activation, [0.3])
    attributes = {"activation": activation, "activation_params": numbers, "pads": [1, 0, 1, 0]}
    fused = with_open_sizes([own("FusedConv", ["x", "w", "b"], ["y"], **attributes)], feeds, constants, ["y"])
    if activation in BEHIND_CONVOLUTIONS:
        assert_same_results(fused, feeds)
        return
    own_numbers = dict(zip(FUSED.get(activation, ()), numbers, strict=False))
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 0, 1, 0]),
        helper.make_node(activation, ["c"], ["y"], **own_numbers),
    ]
    one, other = (
        Interpreter(net) for net in (in_standard(fused), with_open_sizes(nodes, feeds, constants, ["y"], opset=18))
    )
    for feed in feeds:
        np.testing.assert_array_equal(one(feed)["y"], other(feed)["y"])


@pytest.mark.parametrize("attributes", [{}, {"activation": "Relu"}])
def test_a_convolution_with_a_residual(attributes: dict[str, Any]) -> None:
    feeds = [{"x": floats(7, n, 3, 6, 6), "z": floats(8, n, 4, 6, 6)} for n in (1, 2)]
    constants = {"w": floats(9, 4, 3, 3, 3), "b": floats(10, 4)}
    node = own("FusedConv", ["x", "w", "b", "z"], ["y"], pads=[1] * 4, **{"activation": "Relu", **attributes})
    assert_same_results(with_open_sizes([node], feeds, constants, ["y"]), feeds)


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("sides", ["A", "B", "AB", ""])
@pytest.mark.parametrize("operator", ["FusedMatMul", "TransposeMatMul"])
def test_operands_may_be_transposed(operator: str, sides: str, rank: int) -> None:
    feeds = []
    for rows in (3, 5):
        batch = (2, 4)[: rank - 2]
        a = floats(11, *batch, *((6, rows) if "A" in sides else (rows, 6)))
        feeds.append({"a": a, "b": floats(12, *batch, *((7, 6) if "B" in sides else (6, 7)))})
    node = own(operator, ["a", "b"], ["y"], alpha=0.3, transA=int("A" in sides), transB=int("B" in sides))
    assert_same_results(with_open_sizes([node], feeds, {}, ["y"]), feeds)


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("side", ["A", "B"])
def test_a_batch_may_lie_behind_the_rows(side: str, turned: int) -> None:
    feeds = []
    for batch in (2, 3):
        shapes = {"A": (batch, 4, 6), "B": (batch, 6, 5)}
        whole = {name: floats(13, *shape) for name, shape in shapes.items()}
        moved = whole[side].swapaxes(1, 2) if turned else whole[side]
        feeds.append({**whole, side: np.ascontiguousarray(np.moveaxis(moved, -2, 0))})
    attributes = {f"transBatch{side}": 1, f"trans{side}": turned}
    node = own("FusedMatMul", ["A", "B"], ["y"], **attributes)
    assert_same_results(with_open_sizes([node], feeds, {}, ["y"]), feeds)


@pytest.mark.parametrize("has_sum", [False, True])
@pytest.mark.parametrize(
    ("operator", "skip"),
    [
        ("SkipLayerNormalization", "whole"),
        ("SkipLayerNormalization", "of one row"),
        ("SkipLayerNormalization", "without batch"),
        ("SkipSimplifiedLayerNormalization", "whole"),
    ],
)
def test_a_sum_is_normalized(operator: str, skip: str, has_sum: bool) -> None:
    feeds = []
    for batch, tokens in ((2, 5), (3, 4)):
        leading = {"whole": (batch, tokens), "of one row": (1, tokens), "without batch": (tokens,)}[skip]
        feeds.append({"x": floats(14, batch, tokens, 8), "skip": floats(15, *leading, 8)})
    constants = {"gamma": floats(16, 8), "beta": floats(17, 8), "bias": floats(18, 8)}
    if operator == "SkipSimplifiedLayerNormalization":
        del constants["beta"]
    outputs = ["y", "", "", "sum"] if has_sum else ["y"]
    node = own(operator, ["x", "skip", *constants], outputs, epsilon=1e-5)
    assert_same_results(with_open_sizes([node], feeds, constants, [name for name in outputs if name]), feeds)


@pytest.mark.parametrize("axis", [-1, 1, 2])
@pytest.mark.parametrize("opset", [11, 17, 18])
@pytest.mark.parametrize("name", ["LayerNormalization", "SimplifiedLayerNormalization"])
def test_normalizations_in_onnxs_domain_where_onnx_has_none(name: str, opset: int, axis: int) -> None:
    feeds = [{"x": floats(19, b, 5, 8)} for b in (2, 3)]
    shape = (5, 8) if axis == 1 else (8,)
    constants = {"gamma": floats(20, *shape)} | ({"beta": floats(21, *shape)} if name[0] == "L" else {})
    node = helper.make_node(name, ["x", *constants], ["n"], axis=axis, epsilon=1e-4)
    nodes = [node, helper.make_node("Relu", ["n"], ["y"])]
    assert_same_results(with_open_sizes(nodes, feeds, constants, ["y"], opset=opset), feeds)


@pytest.mark.parametrize("form", ["", "segments", "mask", "positions", "sum"])
def test_embeddings_are_summed_and_normalized(form: str) -> None:
    feeds: list[Arrays] = []
    for batch, tokens in ((2, 5), (3, 4)):
        feed = {"ids": integers(22, 0, 20, batch, tokens, dtype=np.int32)}
        if form == "segments":
            feed["segments"] = integers(23, 0, 2, batch, tokens, dtype=np.int32)
        if form == "mask":
            feed["mask"] = integers(24, 0, 2, batch, tokens, dtype=np.int32)
        if form == "positions":
            feed["places"] = integers(25, 0, 8, batch, tokens, dtype=np.int32)
        feeds.append(feed)
    constants = {
        "words": floats(26, 20, 8),
        "positions": floats(27, 9, 8),
        "gamma": floats(28, 8),
        "beta": floats(29, 8),
    }
    if form == "segments":
        constants["kinds"] = floats(30, 2, 8)
    given = {**feeds[0], **constants}
    order = ("ids", "segments", "words", "positions", "kinds", "gamma", "beta", "mask", "places")
    names = [name if name in given else "" for name in order]
    outputs = ["y", "lengths:INT32", *["total"] * (form == "sum")]
    node = own("EmbedLayerNormalization", names, [name.split(":")[0] for name in outputs], epsilon=1e-6)
    assert_same_results(with_open_sizes([node], feeds, constants, outputs), feeds)


@pytest.mark.parametrize("has_mask", [False, True])
def test_embeddings_in_bytes(has_mask: bool) -> None:
    feeds: list[Arrays] = []
    for batch, tokens in ((2, 5), (3, 4)):
        feed = {name: integers(31, 0, 2, batch, tokens, dtype=np.int32) for name in ("ids", "segments")}
        if has_mask:
            feed["mask"] = integers(32, 0, 2, batch, tokens, dtype=np.int32)
        feeds.append(feed)
    tables = {"words": (20, 8), "positions": (9, 8), "kinds": (2, 8), "gamma": (8,), "beta": (8,)}
    constants: Arrays = {name: integers(33, 0, 256, *shape, dtype=np.uint8) for name, shape in tables.items()}
    constants |= {f"{name}_s": np.float32(0.02 + 0.01 * place) for place, name in enumerate(tables)}
    constants |= {f"{name}_z": np.uint8(120 + place) for place, name in enumerate(tables)}
    names = ["ids", "segments", *tables, "mask" if has_mask else ""]
    names += [f"{name}_{part}" for part in "sz" for name in tables]
    node = own("QEmbedLayerNormalization", names, ["y", "lengths"])
    assert_same_results(with_open_sizes([node], feeds, constants, ["y", "lengths:INT32"]), feeds)


ROTARY: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "flat": ((24,), {}),
    "flat with heads": ((24,), {"num_heads": 3}),
    "some channels": ((36,), {"num_heads": 3, "rotary_embedding_dim": 8}),
    "heads first": ((3, 8), {}),
    "neighbours": ((24,), {"interleaved": 1}),
    "some neighbours": ((36,), {"num_heads": 3, "rotary_embedding_dim": 8, "interleaved": 1}),
}


@pytest.mark.parametrize("is_one", [False, True])
@pytest.mark.parametrize("form", ROTARY)
def test_positions_turn_pairs_of_channels(form: str, is_one: bool) -> None:
    shape, attributes = ROTARY[form]
    feeds = []
    for batch, tokens in ((2, 5), (3, 4)):
        wide = (batch, tokens, *shape) if len(shape) == 1 else (batch, shape[0], tokens, shape[1])
        positions = np.array([3]) if is_one else integers(34, 0, 16, batch, tokens)
        feeds.append({"x": floats(35, *wide), "p": positions})
    constants = {"cos": floats(36, 16, 4), "sin": floats(37, 16, 4)}
    node = own("RotaryEmbedding", ["x", "p", "cos", "sin"], ["y"], **attributes)
    assert_same_results(with_open_sizes([node], feeds, constants, ["y"]), feeds)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
def test_three_positions_turn_pairs_of_channels(rank: int, layout: int) -> None:
    feeds = [
        {"x": floats(38, *((b, s, 36) if rank == 3 else (b, 3, s, 12))), "p": integers(39, 0, 16, 3, b, s)}
        for b, s in ((2, 5), (3, 4))
    ]
    constants = {"cos": floats(40, 16, 6), "sin": floats(41, 16, 6)}
    attributes = {"mrope_section": [2, 2, 2], "mrope_layout": layout}
    if rank == 3:
        attributes |= {"num_heads": 3, "rotary_embedding_dim": 12}
    node = own("MRotaryEmbedding", ["x", "p", "cos", "sin"], ["y"], **attributes)
    assert_same_results(with_open_sizes([node], feeds, constants, ["y"]), feeds)


MOVES: dict[str, tuple[list[Arrays], Arrays, dict[str, Any]]] = {
    "BranchwiseRMSNorm": ([{"x": floats(42, n, 12)} for n in (2, 3)], {"s": floats(43, 12)}, {"num_branches": 3}),
    "CDist": ([{"a": floats(44, n, 6), "b": floats(45, n + 1, 6)} for n in (3, 5)], {}, {"metric": "euclidean"}),
    "ConvTransposeWithDynamicPads": (
        [{"x": floats(46, 1, 3, n, n)} for n in (4, 6)],
        {"w": floats(47, 3, 2, 3, 3), "pads": np.array([1, 0, 1, 0])},
        {"strides": [2, 2]},
    ),
    "CropAndResize": (
        [
            {
                "x": floats(48, 2, 3, n, n + 1),
                "r": np.random.default_rng(49).uniform(-0.2, 1.2, (4, 4)).astype(np.float32),
            }
            for n in (6, 9)
        ],
        {"i": np.array([0, 1, 1, 0], np.int32), "size": np.array([4, 5], np.int32)},
        {"extrapolation_value": 7.0},
    ),
    "ExpandDims": ([{"x": floats(50, n, 4)} for n in (2, 3)], {"a": np.array(1, np.int32)}, {}),
    "GatedAdd": ([{"x": floats(51, n, 4), "z": floats(52, n, 4), "g": floats(53, n, 1)} for n in (2, 3)], {}, {}),
    "GatedRMSNorm": (
        [{"x": floats(54, n, 5, 12), "s": floats(55, 4), "g": floats(56, n, 5, 12)} for n in (2, 3)],
        {},
        {},
    ),
    "GatherND": ([{"x": floats(57, n, 4, 5)} for n in (3, 6)], {"i": np.array([[0, 1], [2, 3]], np.int32)}, {}),
    "GridSample": (
        [{"x": floats(58, 1, 2, n, n), "g": floats(59, 1, 4, 4, 2)} for n in (5, 7)],
        {},
        {"mode": "bicubic"},
    ),
    "Pad": (
        [{"x": floats(60, n, 4)} for n in (2, 3)],
        {"p": np.array([[1, 0, 0, 2]]), "v": np.array([2.5], np.float32)},
        {},
    ),
    "Range": ([{"a": np.array([n], np.float32), "b": np.array([9], np.float32)} for n in (2, 3)], {}, {}),
    "ScaledSiLU": ([{"x": floats(61, n, 4)} for n in (2, 3)], {}, {"alpha": 0.5}),
    "Trilu": ([{"x": floats(62, n, n)} for n in (4, 6)], {"k": np.array(1)}, {"upper": 0}),
    "UnfoldTensor": ([{"x": floats(63, 2, n, 3)} for n in (7, 9)], {}, {"dim": 1, "size": 3, "step": 2}),
    "Gelu": ([{"x": floats(64, n, 4)} for n in (2, 3)], {}, {}),
    "FastGelu": ([{"x": floats(65, n, 4)} for n in (2, 3)], {"b": floats(66, 4)}, {}),
    "BiasGelu": ([{"x": floats(67, n, 4)} for n in (2, 3)], {"b": floats(68, 4)}, {}),
    "QuickGelu": ([{"x": floats(69, n, 4)} for n in (2, 3)], {}, {"alpha": 1.5}),
}


@pytest.mark.parametrize("opset", [16, 18, 20])
@pytest.mark.parametrize("operator", MOVES)
def test_other_operators_on_floats(operator: str, opset: int) -> None:
    feeds, constants, attributes = MOVES[operator]
    node = own(operator, [*feeds[0], *constants], ["y"], **attributes)
    assert_same_results(with_open_sizes([node], feeds, constants, ["y"], opset=opset), feeds, within=2e-5)


def test_values_in_the_order_of_their_first_place() -> None:
    feeds = [{"x": integers(70, 0, 5, n).astype(np.float32)} for n in (6, 11)]
    node = own("Unique", ["x"], ["y", "places", "counts"])
    outputs = ["y", "places:INT64", "counts:INT64"]
    assert_same_results(with_open_sizes([node], feeds, {}, outputs), feeds)


def test_products_of_words_of_16_bits() -> None:
    feeds = [{"a": integers(71, -99, 99, n, 6, dtype=np.int16)} for n in (3, 5)]
    constants = {"b": integers(72, -99, 99, 6, 4, dtype=np.int16)}
    node = own("MatMulInteger16", ["a", "b"], ["y"])
    assert_same_results(with_open_sizes([node], feeds, constants, ["y:INT32"]), feeds)


@pytest.mark.parametrize("has_past", [False, True])
@pytest.mark.parametrize("form", [{}, {"activation": "silu"}, {"dilation": 2}, {"channels_last": 1}])
def test_a_convolution_that_carries_a_state(form: dict[str, Any], has_past: bool) -> None:
    kept = 2 * form.get("dilation", 1)
    feeds: list[Arrays] = []
    for batch, tokens in ((2, 5), (1, 3)):
        feed = {"x": floats(73, batch, 4, tokens)} | ({"p": floats(74, batch, 4, kept)} if has_past else {})
        if form.get("channels_last"):
            feed = {name: np.ascontiguousarray(array.swapaxes(1, 2)) for name, array in feed.items()}
        feeds.append(feed)
    constants = {"w": floats(75, 4, 1, 3), "b": floats(76, 4)}
    node = own("CausalConvWithState", ["x", "w", "b", *["p"] * has_past], ["y", "state"], **form)
    assert_same_results(with_open_sizes([node], feeds, constants, ["y", "state"]), feeds)


@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (2, 4)])
@pytest.mark.parametrize("has_past", [False, True])
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta", "gated by key"])
def test_attention_without_a_softmax(rule: str, has_past: bool, heads: tuple[int, int]) -> None:
    (queries, keys), size, width = heads, 4, 6
    feeds: list[Arrays] = []
    for batch, tokens in ((2, 5), (1, 3)):
        feed = {
            "q": floats(77, batch, tokens, queries * size),
            "k": floats(78, batch, tokens, keys * size) / 4,
            "v": floats(79, batch, tokens, keys * width),
        }
        if has_past:
            feed["p"] = floats(80, batch, keys, size, width)
        if "gated" in rule:
            feed["g"] = -np.abs(floats(81, batch, tokens, keys * (size if "key" in rule else 1)))
        if "delta" in rule:
            feed["b"] = np.abs(floats(82, batch, tokens, keys))
        feeds.append(feed)
    names = [name if name in feeds[0] else "" for name in "qkvpgb"]
    attributes = {"q_num_heads": queries, "kv_num_heads": keys, "update_rule": rule.split()[0]}
    node = own("LinearAttention", names, ["y", "state"], **attributes)
    assert_same_results(with_open_sizes([node], feeds, {}, ["y", "state"]), feeds)


def test_gates_of_attention_without_a_softmax() -> None:
    feeds = [{"a": floats(83, n, 5, 4), "b": floats(84, n, 5, 4)} for n in (2, 3)]
    constants = {"t": floats(85, 4), "s": floats(86, 4)}
    node = own("LinearAttentionGate", ["a", "t", "s", "b"], ["y", "z"])
    assert_same_results(with_open_sizes([node], feeds, constants, ["y", "z"]), feeds)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_matrices_are_inverted(size: int, dtype: Any) -> None:
    matrices = floats(87, 5, 2, size, size).astype(dtype) + 3 * np.eye(size, dtype=dtype)
    matrices[0, 0] = np.eye(size)[::-1]  # no pivot without a swap
    feeds = [{"x": matrices}, {"x": matrices[:2]}]
    net = with_open_sizes([own("Inverse", ["x"], ["y"])], feeds, {}, ["y" if dtype == np.float32 else "y:DOUBLE"])
    assert_same_results(net, feeds)


HALF = {
    "SkipLayerNormalization": ((2, 5, 8), (2, 5, 8), (8,), (8,)),
    "SkipSimplifiedLayerNormalization": ((2, 5, 8), (2, 5, 8), (8,)),
    "SimplifiedLayerNormalization": ((2, 5, 8), (8,)),
    "BranchwiseRMSNorm": ((2, 3, 4),),
    "GatedAdd": ((2, 4), (2, 4), (2, 1)),
    "GatedRMSNorm": ((2, 5, 8), (4,), (2, 5, 8)),
    "ScaledSiLU": ((2, 4),),
}
"""Operators that ONNX Runtime has in half precision, and shapes of their operands."""


@pytest.mark.parametrize("operator", HALF)
def test_operators_in_half_precision(operator: str) -> None:
    feeds = [{f"x{place}": floats(88 + place, *shape).astype(np.float16) for place, shape in enumerate(HALF[operator])}]
    domain = "" if operator == "SimplifiedLayerNormalization" else MICROSOFT
    node = helper.make_node(operator, list(feeds[0]), ["y"], domain=domain)
    assert_same_results(with_open_sizes([node], feeds, {}, ["y:FLOAT16"], opset=18), feeds, within=4e-3)


ON_TRIAL: dict[str, dict[str, Any]] = {
    "Affine": {"alpha": 1.5, "beta": 0.25},
    "Crop": {"border": [1, 0, 2, 1]},
    "ImageScaler": {"scale": 0.5, "bias": [0.1, 0.2, 0.3]},
    "ParametricSoftplus": {"alpha": 1.5, "beta": 0.25},
    "Scale": {"scale": 2.5},
    "ScaledTanh": {"alpha": 1.5, "beta": 0.25},
}


@pytest.mark.parametrize("operator", [*ON_TRIAL, "Crop to a size", "DynamicSlice"])
def test_operators_that_onnx_had_on_trial(operator: str) -> None:
    feeds = [{"x": floats(90, 2, 3, n, n)} for n in (6, 8)]
    attributes = {
        **ON_TRIAL.get(operator, {}),
        **({"border": [1, 2, 0, 0], "scale": [3, 4]} if " " in operator else {}),
    }
    constants = {name: np.array([1, 2]) for name in ("starts", "axes")} | {"ends": np.array([2, 4])}
    names = ["x", "starts", "ends", "axes"] if operator == "DynamicSlice" else ["x"]
    node = helper.make_node(operator.split()[0], names, ["y"], **attributes)
    net = with_open_sizes([node], feeds, constants if len(names) > 1 else {}, ["y"], opset=9)
    assert_same_results(net, feeds)
