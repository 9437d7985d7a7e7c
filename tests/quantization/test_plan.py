"""Where integers are stored: between layers, never inside one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from forge_pipeline.ir import ONNXModule
from forge_pipeline.quantization.network import Network, prepare
from forge_pipeline.quantization.plan import make_plan

Parse = Callable[..., ONNXModule]


@pytest.fixture
def network(net: ONNXModule) -> Network:
    return Network(prepare(net.mod))


def test_values_are_stored_between_layers_and_not_inside_one(network: Network) -> None:
    values = make_plan(network).values
    assert set(values) == {
        "image", "stem_relu", "depth_relu", "sum_relu", "left", "right", "both", "pooled", "mean", "flat",
    }  # fmt: skip


def test_values_that_are_only_moved_share_a_scale(network: Network) -> None:
    groups = make_plan(network).groups()
    assert groups["left"] == ("left", "right", "both", "pooled")
    assert groups["mean"] == ("mean", "flat")
    assert groups["image"] == ("image",)


def test_a_layer_kept_in_float_reads_and_writes_floats(network: Network) -> None:
    plan = make_plan(network, ["Conv_0"])
    assert "image" not in plan.values
    assert plan.skipped == {"Conv_0": "asked for"}
    assert "Conv_0" not in plan.products


def test_a_residual_addition_is_the_epilogue_of_the_last_convolution_into_it(parse: Parse) -> None:
    weights = {name: np.ones((4, 4, 1, 1), np.float32) for name in "uvw"}
    plan = make_plan(Network(prepare(parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y)
        { a = Conv(x, u) b = Conv(x, v) c = Add(a, b) d = Relu(c) y = Conv(d, w) }""",
        weights,
    ).mod)))  # fmt: skip
    assert set(plan.values) == {"x", "a", "d"}


def test_what_is_padded_with_infinity_stays_in_float(parse: Parse) -> None:
    weights = {
        "w": np.ones((4, 4, 1, 1), np.float32),
        "amounts": np.array([0, 0, 0, 0, 0, 0, 1, 1], np.int64),
        "least": np.array([-np.inf], np.float32),
    }
    plan = make_plan(Network(prepare(parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 4, 8, 8] x) => (float[1, 4, 4, 4] y)
        {
            a = Relu(x)
            b = Pad(a, amounts, least)
            c = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(b)
            y = Conv(c, w)
        }""",
        weights,
    ).mod)))  # fmt: skip
    assert set(plan.values) == {"c"}


def test_a_swish_is_the_epilogue_of_its_convolution_and_a_gated_value_is_stored(parse: Parse) -> None:
    weights = {name: np.ones((4, 4, 1, 1), np.float32) for name in "uvw"}
    plan = make_plan(Network(prepare(parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y)
        {
            a = Conv(x, u) s = Sigmoid(a) swish = Mul(a, s)
            mean = GlobalAveragePool(swish) squeezed = Conv(mean, v) gate = Sigmoid(squeezed)
            gated = Mul(swish, gate)
            y = Conv(gated, w)
        }""",
        weights,
    ).mod)))  # fmt: skip
    assert set(plan.values) == {"x", "swish", "mean", "gated"}


def test_a_residual_stream_of_floats_stays_in_float(parse: Parse) -> None:
    weights = {"u": np.ones((4, 4), np.float32), "v": np.ones((4, 4), np.float32), "one": np.ones(4, np.float32)}
    plan = make_plan(Network(prepare(parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[2, 4] x) => (float[2, 4] y)
        {
            norm = LayerNormalization(x, one) up = MatMul(norm, u) act = Relu(up) down = MatMul(act, v)
            sum = Add(x, down)
            y = LayerNormalization(sum, one)
        }""",
        weights,
    ).mod)))  # fmt: skip
    assert set(plan.values) == {"norm", "act"}


NORMALIZATIONS = {
    "RMSNorm": "q = Mul(r, r) m = ReduceMean <axes = [1]> (q) e = Add(m, one) d = Sqrt(e) n = Div(r, d)",
    "LayerNorm": """m = ReduceMean <axes = [1]> (r) c = Sub(r, m) q = Pow(c, two) v = ReduceMean <axes = [1]> (q)
                    e = Add(v, one) d = Sqrt(e) k = Div(c, d) b = Mul(k, one) n = Add(b, one)""",
    "softmax": "m = ReduceMax <axes = [1]> (r) c = Sub(r, m) e = Exp(c) d = ReduceSum(e, last) n = Div(e, d)",
    "length": "d = ReduceL2 <axes = [1]> (r) e = Max(d, one) n = Div(r, e)",
}


@pytest.mark.parametrize("body", NORMALIZATIONS.values(), ids=NORMALIZATIONS)
def test_a_normalization_that_is_written_out_is_computed_in_float(parse: Parse, body: str) -> None:
    weights = {
        "u": np.ones((4, 4), np.float32), "w": np.ones((4, 4), np.float32), "one": np.ones(4, np.float32),
        "two": np.array(2, np.float32), "last": np.array([1], np.int64),
    }  # fmt: skip
    plan = make_plan(Network(prepare(parse(
        f"""<ir_version: 10, opset_import: ["": 17]>
        net (float[2, 4] x) => (float[2, 4] y)
        {{ up = MatMul(x, u) r = Add(x, up) {body} down = MatMul(n, w) y = Add(r, down) }}""",
        weights,
    ).mod)))  # fmt: skip
    assert set(plan.values) == {"x", "n"}


def test_a_residual_stream_between_normalizations_is_read_as_it_is(parse: Parse) -> None:
    weights = {"u": np.ones((4, 4), np.float32), "v": np.ones((4, 4), np.float32), "one": np.ones(4, np.float32)}
    network = Network(prepare(parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[2, 4] x) => (float[2, 4] y)
        {
            norm = LayerNormalization(x, one) up = MatMul(norm, u) act = Relu(up) down = MatMul(act, v)
            sum = Add(norm, down)
            y = LayerNormalization(sum, one)
        }""",
        weights,
    ).mod))  # fmt: skip
    plan = make_plan(network)
    assert set(plan.values) == {"norm", "act"}
    assert plan.reads_integers(network.producer["up"], "norm")
    assert not plan.reads_integers(network.producer["sum"], "norm")


def test_what_layers_compute_is_stored_once_whoever_reads_it(parse: Parse) -> None:
    weights = {name: np.ones((4, 4, 1, 1), np.float32) for name in "uv"}
    network = Network(prepare(parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y, float[1, 4, 8, 8] z)
        { a = Conv(x, u) b = Relu(a) y = Conv(b, v) z = Sigmoid(b) }""",
        weights,
    ).mod))  # fmt: skip
    assert make_plan(network).reads_integers(network.producer["z"], "b")


def test_a_product_of_two_activations_reads_integers_on_both_sides(parse: Parse) -> None:
    plan = make_plan(Network(prepare(parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[2, 4] x, float[4, 3] z) => (float[2, 3] y) { y = MatMul(x, z) }""",
        {},
    ).mod)))  # fmt: skip
    assert set(plan.values) == {"x", "z"}


ROTARY = """
        p = MatMul(x, u)
        first, second = Split <axis = 2> (p, halves)
        turned = Neg(second)
        both = Concat <axis = 2> (turned, first)
        a = Mul(p, cosine)
        b = Mul(both, sine)
        rotated = Add(a, b)
"""

ROTATED = (
    """<ir_version: 10, opset_import: ["": 17]>
    net (float[1, 6, 8] x) => (float[1, 6, 6] y)
    {"""
    + ROTARY
    + """
        k = MatMul(x, v)
        turn = Transpose <perm = [0, 2, 1]> (k)
        y = MatMul(rotated, turn)
    }"""
)


def test_positions_are_turned_in_float_and_stored_once(parse: Parse) -> None:
    weights = {
        "u": np.ones((8, 8), np.float32), "v": np.ones((8, 8), np.float32), "halves": np.array([4, 4]),
        "cosine": np.ones((6, 8), np.float32), "sine": np.ones((6, 8), np.float32),
    }  # fmt: skip
    plan = make_plan(Network(prepare(parse(ROTATED, weights).mod)))
    assert set(plan.values) == {"x", "rotated", "k", "turn"}


def test_positions_of_a_head_that_queries_share_are_turned_in_float(parse: Parse) -> None:
    weights = {
        "u": np.ones((8, 4), np.float32), "v": np.ones((8, 4), np.float32), "halves": np.array([2, 2]),
        "cosine": np.ones((6, 4), np.float32), "sine": np.ones((6, 4), np.float32),
        "twice": np.array([1, 2, 6, 4]), "one": np.array([1]),
    }  # fmt: skip
    plan = make_plan(Network(prepare(parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 6, 8] x, float[1, 2, 4, 6] z) => (float[1, 2, 6, 6] y)
        {""" + ROTARY + """
            head = Unsqueeze(rotated, one)
            heads = Expand(head, twice)
            scaled = Mul(heads, cosine)
            y = MatMul(scaled, z)
        }""",
        weights,
    ).mod)))  # fmt: skip
    assert set(plan.values) == {"x", "scaled", "z"}


def test_positions_of_a_product_that_others_read_are_turned_on_what_is_stored(parse: Parse) -> None:
    weights = {
        "u": np.ones((8, 8), np.float32), "v": np.ones((8, 8), np.float32), "halves": np.array([4, 4]),
        "cosine": np.ones((6, 8), np.float32), "sine": np.ones((6, 8), np.float32),
    }  # fmt: skip
    read = ROTATED.replace("y = MatMul(rotated, turn)", "scores = MatMul(rotated, turn) y = MatMul(scores, p)")
    plan = make_plan(Network(prepare(parse(read.replace("float[1, 6, 6] y", "float[1, 6, 8] y"), weights).mod)))
    assert {"p", "rotated"} <= set(plan.values)


def test_what_cannot_compute_in_integers_is_left_with_its_reason(parse: Parse) -> None:
    plan = make_plan(Network(prepare(parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 4, 8, 8] x, float[4, 4, 1, 1] w) => (float[1, 4, 8, 8] y) { y = Conv(x, w) }""",
        {},
    ).mod)))  # fmt: skip
    assert plan.skipped == {"Conv_0": "its weights are computed"}
    assert plan.products == ()
