"""Static quantization: valid, deterministic, close to the float model, and exact in its refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from numpy.typing import NDArray
from onnx import numpy_helper

from forge_pipeline.config import bind
from forge_pipeline.data import Feed
from forge_pipeline.errors import ArtifactError, ConfigError, DataError, ModelError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.locate import conf_dir
from forge_pipeline.quantization.build import plan_for, quantize_statically
from forge_pipeline.quantization.calibration.observe import calibrate
from forge_pipeline.quantization.calibration.probes import Probe
from forge_pipeline.quantization.calibration.ranges import Ranges
from forge_pipeline.quantization.network import Network, prepare
from forge_pipeline.quantization.settings import Config

Parse = Callable[..., ONNXModule]


def settings(**changes: Any) -> Config:
    values = yaml.safe_load((conf_dir() / "quantize" / "static.yaml").read_text())
    plain = {"reduce_range": False, "improve": [], "calib_method": "mse"}
    return bind(Config, {**values, **plain, **changes}, where="quantize")


def learn(net: ONNXModule, feeds: list[Feed]) -> Ranges:
    return calibrate(net, feeds, total=len(feeds), histogram_values=1 << 20)


def sqnr(net: ONNXModule, other: ONNXModule, feeds: list[Feed]) -> float:
    one, two = Interpreter(net.mod, optimized=True), Interpreter(other.mod)
    pairs = [(next(iter(one(feed).values())), next(iter(two(feed).values()))) for feed in feeds]
    signal = sum(float((a.astype(np.float64) ** 2).sum()) for a, _ in pairs)
    noise = sum(float(((a.astype(np.float64) - b) ** 2).sum()) for a, b in pairs)
    return float(10 * np.log10(signal / max(noise, 1e-30)))


@pytest.fixture(scope="module")
def ranges(net: ONNXModule, feeds: list[Feed]) -> Ranges:
    return learn(net, feeds)


@pytest.mark.every(5)
@pytest.mark.parametrize(
    ("changes", "least"),
    [
        ({}, 28.0),
        ({"per_channel": False}, 26.0),
        ({"activation_dtype": "int8"}, 28.0),
        ({"activation_dtype": "int8", "symmetric": True}, 24.0),
        ({"activation_dtype": "uint8", "symmetric": True}, 24.0),
        ({"activation_dtype": "int16", "symmetric": True}, 36.0),
        ({"activation_dtype": "uint16"}, 36.0),
        ({"kernel_dtype": "uint8"}, 28.0),
        ({"bias_dtype": "float32"}, 28.0),
        ({"reduce_range": True}, 25.0),
        *(({"calib_method": name}, 20.0) for name in ("minmax", "average", "percentile", "entropy", "mse")),
    ],
)
def test_every_setting_gives_a_valid_model_close_to_the_float_one(
    net: ONNXModule, feeds: list[Feed], ranges: Ranges, changes: Mapping[str, Any], least: float
) -> None:
    model, _ = quantize_statically(settings(**changes), net, ranges)
    onnx.checker.check_model(model.mod, full_check=True)
    assert sqnr(net, model, feeds) > least


def test_the_same_inputs_give_the_same_bytes_and_are_left_as_they_were(net: ONNXModule, ranges: Ranges) -> None:
    before = net.to_bytes(), ranges.to_bytes()
    one, two = (quantize_statically(settings(), net, ranges)[0].to_bytes() for _ in range(2))
    assert one == two
    assert (net.to_bytes(), ranges.to_bytes()) == before


def test_every_layer_reads_integers_and_activations_are_saturation(net: ONNXModule, ranges: Ranges) -> None:
    model, report = quantize_statically(settings(calib_method="minmax"), net, ranges)
    network = Network(model.mod)
    for node in network.nodes:
        if node.op_type in ("Conv", "Gemm", "MaxPool", "GlobalAveragePool", "Concat"):
            sources = [network.producer[name].op_type for name in node.input if name in network.producer]
            assert set(sources) == {"DequantizeLinear"}, node.name
    assert report["fused_activations"] == 3
    assert model.operators.get("Relu", 0) + model.operators.get("Clip", 0) == 0


def test_outputs_are_not_rounded(net: ONNXModule, ranges: Ranges) -> None:
    model, _ = quantize_statically(settings(), net, ranges)
    assert Network(model.mod).producer["scores"].op_type == "Gemm"


def test_weights_and_biases_are_stored_as_integers(net: ONNXModule, ranges: Ranges) -> None:
    model, _ = quantize_statically(settings(), net, ranges)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.mod.graph.initializer}
    assert not {"w0", "b0", "w1", "b1", "w2", "b2", "w3", "w4"} & stored.keys()
    assert stored["w1_q"].dtype == np.int8
    assert stored["stem_bias_q"].dtype == np.int32
    assert stored["w1_scale"].shape == (8,)
    np.testing.assert_array_equal(stored["stem_bias_scale"], stored["w0_scale"] * stored["image_scale"])


def test_reduced_range_keeps_pairs_of_products_within_sixteen_bits(net: ONNXModule, ranges: Ranges) -> None:
    model, _ = quantize_statically(settings(reduce_range=True), net, ranges)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.mod.graph.initializer}
    largest = max(
        int(np.abs(a.astype(int)).max()) for name, a in stored.items() if name.startswith("w") and a.dtype == np.int8
    )
    assert 2 * 255 * largest < 2**15


def test_transposed_and_grouped_convolutions_have_a_scale_per_output_channel(parse: Parse) -> None:
    draw = np.random.default_rng(0)
    spread = 4.0 ** np.arange(4, dtype=np.float32)
    weights = {
        "u": (draw.normal(size=(4, 4, 3, 3)) * spread[None, :, None, None]).astype(np.float32),
        "v": (draw.normal(size=(4, 2, 2, 2)) * 0.3).astype(np.float32),
        "b": draw.normal(size=4).astype(np.float32),
    }
    net = parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 4, 5, 5] x) => (float[1, 4, 6, 6] y)
        { up = ConvTranspose<pads=[1, 1, 1, 1]>(x, u, b) y = ConvTranspose<group=2>(up, v, b) }""",
        weights,
    )
    feeds: list[Feed] = [{"x": draw.normal(size=(1, 4, 5, 5)).astype(np.float32)} for _ in range(8)]
    model, _ = quantize_statically(settings(), net, learn(net, feeds))
    onnx.checker.check_model(model.mod, full_check=True)
    assert sqnr(net, model, feeds) > 30.0


def test_an_activation_that_a_branch_reads_is_computed(parse: Parse) -> None:
    draw = np.random.default_rng(0)
    net = parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 4, 5, 5] x, bool c) => (float[1, 4, 5, 5] y, float[1, 4, 5, 5] z)
        {
            a = Conv(x, w)
            r = Relu(a)
            y = Conv(r, w)
            z = If(c) <then_branch = b () => (float[1, 4, 5, 5] t) { t = Neg(r) },
                       else_branch = d () => (float[1, 4, 5, 5] e) { e = Identity(r) }>
        }""",
        {"w": draw.normal(size=(4, 4, 1, 1)).astype(np.float32)},
    )
    feeds: list[Feed] = [
        {"x": draw.normal(size=(1, 4, 5, 5)).astype(np.float32), "c": np.array(case)} for case in (False, True)
    ]
    model, report = quantize_statically(settings(), net, learn(net, feeds))
    onnx.checker.check_model(model.mod, full_check=True)
    assert report["fused_activations"] == 0
    for feed in feeds:
        exact, found = Interpreter(net.mod)(feed)["z"], Interpreter(model.mod)(feed)["z"]
        np.testing.assert_allclose(found, exact, atol=0.1)


def test_a_channel_that_is_far_larger_than_others_does_not_drown_what_is_normalized(parse: Parse) -> None:
    draw = np.random.default_rng(0)
    weights = {name: draw.normal(size=(32, 32)).astype(np.float32) / 6 for name in "uvw"}
    weights["u"][:, 3] *= 100.0
    weights |= {"eps": np.array(1e-6, np.float32), "gain": np.ones(32, np.float32)}
    weights["gain"][3] = 1e-2
    net = parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[8, 32] x) => (float[8, 32] y)
        {
            r = MatMul(x, u)
            q = Mul(r, r) m = ReduceMean <axes = [1]> (q) e = Add(m, eps) d = Sqrt(e) k = Div(r, d) n = Mul(k, gain)
            a = MatMul(n, v)
            y = MatMul(a, w)
        }""",
        weights,
    )
    feeds: list[Feed] = [{"x": draw.uniform(0.5, 1.5, (8, 32)).astype(np.float32)} for _ in range(8)]
    model, _ = quantize_statically(settings(calib_method="minmax"), net, learn(net, feeds))
    assert sqnr(net, model, feeds) > 25.0


def test_a_model_that_integers_leave_little_of_is_told_of(
    parse: Parse, net: ONNXModule, ranges: Ranges, feeds: list[Feed]
) -> None:
    draw = np.random.default_rng(0)
    weights = draw.normal(size=(8, 4)).astype(np.float32)
    weights[0] = 0.0
    lost = parse(
        """<ir_version: 10, opset_import: ["": 17]> net (float[4, 8] x) => (float[4, 4] y) { y = MatMul(x, w) }""",
        {"w": weights},
    )
    samples: list[Feed] = [{"x": draw.normal(size=(4, 8)).astype(np.float32)} for _ in range(4)]
    for sample in samples:
        sample["x"][:, 0] *= 3000.0
    choice = settings(calib_method="auto")
    _, report = quantize_statically(choice, lost, learn(lost, samples), [Probe.of(feed, None) for feed in samples])
    assert "outputs have an SQNR of " in report["notes"][0]
    _, report = quantize_statically(choice, net, ranges, [Probe.of(feed, None) for feed in feeds])
    assert "notes" not in report


def test_a_layer_kept_in_float_keeps_its_weights(net: ONNXModule, ranges: Ranges) -> None:
    model, report = quantize_statically(settings(keep_float=["Conv_2"]), net, ranges)
    assert "w1" in {tensor.name for tensor in model.mod.graph.initializer}
    assert report["float_layers"] == {"Conv_2": "asked for"}


def test_an_unknown_layer_is_refused_with_the_nearest_name(net: ONNXModule, ranges: Ranges) -> None:
    with pytest.raises(ConfigError) as refusal:
        quantize_statically(settings(keep_float=["Conv_33"]), net, ranges)
    assert refusal.value.found == "'Conv_33'"
    assert refusal.value.fix.startswith("did you mean 'Conv_")


def test_ranges_of_another_model_are_refused(net: ONNXModule, ranges: Ranges) -> None:
    with pytest.raises(ArtifactError, match="ranges of this model"):
        quantize_statically(settings(), net, replace(ranges, fingerprint="0" * 64))


def test_inputs_that_never_vary_are_refused(net: ONNXModule) -> None:
    still: list[Feed] = [{"image": np.zeros((1, 3, 8, 8), np.float32)}] * 3
    with pytest.raises(DataError) as refusal:
        quantize_statically(settings(calib_method="minmax"), net, learn(net, still))
    assert str(refusal.value) == (
        "value 'image': expected an activation that varies over the calibration samples, found the constant 0\n"
        "fix: calibrate on representative samples, or keep its readers in float (quantize.keep_float)"
    )


@pytest.mark.parametrize("constant", [0.25, -0.5, 0.0])
@pytest.mark.parametrize("symmetric", [False, True])
def test_an_inner_activation_that_is_one_number_throughout_is_exact(
    parse: Parse, constant: float, symmetric: bool
) -> None:
    """As behind a normalization that was never trained, or a gate that is always shut."""
    draw = np.random.default_rng(4)
    net = parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 4, 5, 5] x) => (float[1, 4, 5, 5] y) {
            dead = Conv(x, none, bias)
            still = Conv(dead, w)
            alive = Conv(x, w)
            y = Add(still, alive)
        }""",
        {
            "none": np.zeros((4, 4, 1, 1), np.float32),
            "bias": np.full(4, constant, np.float32),
            "w": draw.normal(size=(4, 4, 1, 1)).astype(np.float32),
        },
    )
    feeds: list[Feed] = [{"x": draw.normal(size=(1, 4, 5, 5)).astype(np.float32)} for _ in range(8)]
    model, report = quantize_statically(settings(calib_method="minmax", symmetric=symmetric), net, learn(net, feeds))
    assert report["notes"] == ["one number in all calibration samples, and saturated at twice that: dead"]
    assert sqnr(net, model, feeds) > 30.0


def one_layer(parse: Parse, weights: NDArray[Any], bias: NDArray[Any]) -> tuple[ONNXModule, list[Feed]]:
    net = parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 1024] x) => (float[1, 2] y) { y = Gemm(x, w, b) }""",
        {"w": weights, "b": bias},
    )
    draw = np.random.default_rng(1)
    return net, [{"x": draw.normal(size=(1, 1024)).astype(np.float32)} for _ in range(4)]


def test_a_bias_that_overflows_stays_in_float_where_the_weights_still_count(parse: Parse) -> None:
    weights = np.full((1024, 2), 1e-7, np.float32)
    net, feeds = one_layer(parse, weights, np.array([0.0, 0.125], np.float32))
    model, report = quantize_statically(settings(), net, learn(net, feeds))
    assert report["notes"] == ["a bias that int32 cannot hold, which stays in float: Gemm_0"]
    gemm = Network(model.mod).producer["y"]
    assert gemm.input[2] == "b"
    assert sqnr(net, model, feeds) > 60.0


def test_a_bias_that_drowns_its_weights_widens_their_scale(parse: Parse) -> None:
    weights = np.random.default_rng(2).normal(size=(1024, 2)).astype(np.float32)
    weights[:, 1] = 1e-20
    net, feeds = one_layer(parse, weights, np.array([0.5, 1e3], np.float32))
    model, report = quantize_statically(settings(), net, learn(net, feeds))
    assert report["widened_weight_scales"] == ["Gemm_0"]
    assert sqnr(net, model, feeds) > 60.0


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("z = DequantizeLinear(q, s) y = Conv(x, z)", r"none: Conv_\d+ \(it is quantized already\)"),
        ("z = DequantizeLinear(m, s) y = MatMul(x, z)", r"none: MatMul_\d+ \(it is quantized already\)"),
        (
            "z = DequantizeLinear(m, s) t = Transpose(z) y = MatMul(x, t)",
            r"none: MatMul_\d+ \(it is quantized already\)",
        ),
        (
            "i, j, k = DynamicQuantizeLinear(x) z = DequantizeLinear(i, j, k) y = MatMul(z, z)",
            r"none: MatMul_\d+ \(it is quantized already\)",
        ),
        (
            "t = ReduceMax<keepdims=0>(x) one = Cast<to=9>(t)"
            "y = If(one) <then_branch = a () => (float[1, 2, 3, 3] y1) { y1 = Conv(x, w) },"
            " else_branch = b () => (float[1, 2, 3, 3] y2) { y2 = Identity(x) }>",
            r"none: y1 \(in a branch or a loop\)",
        ),
    ],
)
def test_it_is_said_why_a_layer_is_not_one_for_integers(parse: Parse, body: str, why: str) -> None:
    net = parse(
        f"""<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 2, 3, 3] x) => (float[1, 2, 3, 3] y) {{ {body} }}""",
        {
            "w": np.ones((2, 2, 1, 1), np.float32),
            "q": np.ones((2, 2, 1, 1), np.int8),
            "s": np.float32(0.5),
            "m": np.ones((3, 3), np.int8),
        },
    )
    with pytest.raises(ModelError, match=why):
        plan_for(Network(prepare(net.mod)), settings())


def test_a_model_without_a_layer_for_integers_is_refused(parse: Parse) -> None:
    net = parse(
        """<ir_version: 10, opset_import: ["": 17]> net (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }""", {}
    )
    with pytest.raises(ModelError) as refusal:
        quantize_statically(settings(), net, learn(net, [{"x": np.ones((1, 4), np.float32)}]))
    assert str(refusal.value) == (
        "quantize.method=static: expected a layer that can compute in integers (Conv, ConvTranspose, Gemm, MatMul), "
        "found none: no such layer\n"
        "fix: choose quantize=none, or give a float32 model"
    )


def test_a_layer_that_cannot_be_quantized_is_refused_where_it_is_the_only_one_and_else_named(parse: Parse) -> None:
    draw = np.random.default_rng(3)
    alone = parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 4, 5, 5] x, float[2, 4, 3, 3] w) => (float[1, 2, 3, 3] y) { y = Conv(x, w) }""",
        {},
    )
    feeds: list[Feed] = [
        {"x": draw.normal(size=(1, 4, 5, 5)).astype(np.float32), "w": draw.normal(size=(2, 4, 3, 3)).astype(np.float32)}
        for _ in range(2)
    ]
    with pytest.raises(ModelError) as refusal:
        quantize_statically(settings(), alone, learn(alone, feeds))
    assert str(refusal.value) == (
        "quantize.method=static: expected a layer that can compute in integers (Conv, ConvTranspose, Gemm, MatMul), "
        "found none: Conv_0 (its weights are computed)\n"
        "fix: choose quantize=none, or give a float32 model"
    )
    both = parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 4, 5, 5] x, float[2, 4, 3, 3] w) => (float[1, 3, 3, 3] y) { a = Conv(x, w) y = Conv(a, v) }""",
        {"v": draw.normal(size=(3, 2, 1, 1)).astype(np.float32)},
    )
    model, report = quantize_statically(settings(), both, learn(both, feeds))
    assert report["float_layers"] == {"Conv_0": "its weights are computed"}
    assert report["integer_layers"] == ["Conv_1"]
    assert sqnr(both, model, feeds) > 30.0
