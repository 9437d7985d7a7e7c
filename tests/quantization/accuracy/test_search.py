"""Accuracy tools: the float function stays what it was, and a tool is kept only where it helps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import yaml

from forge_pipeline.config import bind
from forge_pipeline.data import Feed
from forge_pipeline.errors import ConfigError, DataError, VerificationError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.locate import conf_dir
from forge_pipeline.quantization.accuracy.equalize import equalize, links
from forge_pipeline.quantization.accuracy.evaluator import Evaluator
from forge_pipeline.quantization.accuracy.split_channels import best_cut, split
from forge_pipeline.quantization.build import quantize_statically
from forge_pipeline.quantization.calibration.observe import calibrate
from forge_pipeline.quantization.calibration.probes import Probe
from forge_pipeline.quantization.calibration.ranges import Ranges
from forge_pipeline.quantization.network import Network, prepare
from forge_pipeline.quantization.settings import Config

Parse = Callable[..., ONNXModule]
CHAIN = """<ir_version: 10, opset_import: ["": 17]>
net (float[1, 3, 8, 8] x) => (float[1, 5] y)
{
    a = Conv<pads=[1, 1, 1, 1]>(x, w0, b0) ar = Relu(a)
    d = Conv<group=16, pads=[1, 1, 1, 1]>(ar, w1, b1) dr = Relu(d)
    p = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(dr)
    c = Conv(p, w2, b2) cr = Relu(c)
    g = GlobalAveragePool(cr) f = Flatten(g)
    h = Gemm(f, w3, b3) hr = Relu(h)
    y = Gemm<transB=1>(hr, w4, b4)
}"""
SHAPES = {
    "w0": (16, 3, 3, 3), "b0": (16,), "w1": (16, 1, 3, 3), "b1": (16,), "w2": (12, 16, 1, 1), "b2": (12,),
    "w3": (12, 8), "b3": (8,), "w4": (5, 8), "b4": (5,),
}  # fmt: skip


@pytest.fixture
def chain(parse: Parse) -> ONNXModule:
    draw = np.random.default_rng(11)
    return parse(CHAIN, {name: (draw.normal(size=shape) * 0.4).astype(np.float32) for name, shape in SHAPES.items()})


@pytest.fixture
def images() -> list[Feed]:
    draw = np.random.default_rng(12)
    return [{"x": draw.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(32)]


def settings(**changes: Any) -> Config:
    values = yaml.safe_load((conf_dir() / "quantize" / "static.yaml").read_text())
    return bind(Config, {**values, "reduce_range": False, "calib_method": "minmax", **changes}, where="quantize")


def learn(model: ONNXModule, feeds: list[Feed]) -> Ranges:
    return calibrate(model, feeds, total=len(feeds), histogram_values=1 << 20)


def probes(feeds: list[Feed], labels: Any = None) -> list[Probe]:
    return [Probe.of(feed, None if labels is None else labels[i : i + 1]) for i, feed in enumerate(feeds)]


def hostile(model: ONNXModule) -> ONNXModule:
    """Rescale every channel that can be by a power of two between 2^-4 and 2^4."""
    network, draw = Network(prepare(model.mod)), np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for link in links(network, per_channel=True):
        factor: Any = None
        for constants, sign in ((link.divided, -1), (link.multiplied, 1)):
            for name, axis in constants:
                array = arrays.setdefault(name, network.array(name).copy())
                factor = 2.0 ** draw.integers(-4, 5, array.shape[axis]) if factor is None else factor
                shape = [1] * array.ndim
                shape[axis] = -1
                arrays[name] = (array * (factor**sign).reshape(shape)).astype(np.float32)
    return ONNXModule(network.with_arrays(arrays).model)


def same_function(one: onnx.ModelProto, other: onnx.ModelProto, feeds: list[Feed]) -> None:
    for feed in feeds[:4]:
        for wanted, found in zip(
            Interpreter(one, optimized=True)(feed).values(),
            Interpreter(other, optimized=True)(feed).values(),
            strict=True,
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_channels_are_equalized_across_convolutions_pools_and_dense_layers(chain: ONNXModule) -> None:
    found = {link.value: link.free for link in links(Network(prepare(chain.mod)), per_channel=True)}
    assert found == {"ar": True, "p": False, "hr": False}


def test_equalization_keeps_the_function(chain: ONNXModule, images: list[Feed]) -> None:
    network = Network(prepare(chain.mod))
    changed = equalize(network, probes(images), per_channel=True)
    assert changed is not None
    same_function(network.model, changed.model, images)


@pytest.mark.parametrize("per_channel", [True, False])
def test_a_hostile_net_is_found_and_mended(chain: ONNXModule, images: list[Feed], per_channel: bool) -> None:
    spoiled = hostile(chain)
    same_function(chain.mod, spoiled.mod, images)
    evaluator = Evaluator.of(Network(prepare(chain.mod)), probes(images))

    def noise(model: ONNXModule, **changes: Any) -> float:
        config = settings(per_channel=per_channel, **changes)
        return evaluator.sqnr(quantize_statically(config, model, learn(model, images), probes(images))[0].mod)

    plain, mended = noise(spoiled, improve=[]), noise(spoiled, improve=["equalize"])
    assert mended > plain + 6.0
    assert abs(mended - noise(chain, improve=["equalize"])) < 3.0


def test_outliers_in_front_of_a_projection_move_into_the_norm_before_it(parse: Parse) -> None:
    draw = np.random.default_rng(5)
    gain = np.ones(32, np.float32)
    gain[:3] = 60.0
    up = (draw.normal(size=(32, 48)) * 0.2).astype(np.float32)
    up[:3] /= 60.0
    net = parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 7, 32] x) => (float[1, 7, 48] y)
        { n = LayerNormalization(x, gain, shift) q = MatMul(n, u) k = MatMul(n, v) y = Add(q, k) }""",
        {"gain": gain, "shift": np.zeros(32, np.float32), "u": up, "v": up[:, ::-1].copy()},
    )
    feeds: list[Feed] = [{"x": draw.normal(size=(1, 7, 32)).astype(np.float32)} for _ in range(12)]
    ranges = learn(net, feeds)
    _, plain = quantize_statically(settings(improve=[]), net, ranges)
    _, report = quantize_statically(settings(improve=["equalize"]), net, ranges, probes(feeds))
    assert "sqnr_db" not in plain
    entry = report["improvements"]["equalize"]
    assert entry["kept"]
    assert entry["after_db"] > entry["before_db"] + 10.0


def test_a_tool_that_does_not_help_is_not_kept(chain: ONNXModule, images: list[Feed]) -> None:
    ranges = learn(chain, images)
    model, report = quantize_statically(
        settings(improve=["split", "equalize", "correct_bias", "round_weights"]), chain, ranges, probes(images)
    )
    assert report["improvements"].pop("split") == {"kept": False, "why": "nothing to do"}  # each channel has a scale
    assert set(report["improvements"]) == {"equalize", "correct_bias", "round_weights"}
    for name, entry in report["improvements"].items():
        assert entry["kept"] == (entry["after_db"] > entry["before_db"] + 0.1), name
    onnx.checker.check_model(model.mod, full_check=True)
    plain, _ = quantize_statically(settings(improve=[]), chain, ranges)
    evaluator = Evaluator.of(Network(prepare(chain.mod)), probes(images))
    assert evaluator.sqnr(model.mod) >= evaluator.sqnr(plain.mod)


@pytest.mark.parametrize("end", ["QuantizeLinear(h, scale, zero)", "ArgMax<axis=1>(h)"])
def test_a_model_whose_outputs_are_integers_is_compared_by_these_or_by_what_they_store(parse: Parse, end: str) -> None:
    draw = np.random.default_rng(2)
    kind = "uint8" if "scale" in end else "int64"
    shape = "[1, 6, 4, 4]" if "scale" in end else "[1, 1, 4, 4]"
    net = parse(
        f"""<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 3, 4, 4] x) => ({kind}{shape} y) {{ h = Conv(x, w) y = {end} }}""",
        {
            "w": draw.normal(size=(6, 3, 1, 1)).astype(np.float32),
            "scale": np.float32(0.05), "zero": np.uint8(128),
        },
    )  # fmt: skip
    feeds: list[Feed] = [{"x": draw.normal(size=(1, 3, 4, 4)).astype(np.float32)} for _ in range(8)]
    _, report = quantize_statically(settings(), net, learn(net, feeds), probes(feeds))
    assert 5 < report["sqnr_db"] < 80


def test_bias_correction_removes_the_mean_error(chain: ONNXModule, images: list[Feed]) -> None:
    ranges = learn(chain, images)

    def shift(improve: list[str]) -> float:
        model, _ = quantize_statically(settings(improve=improve, reduce_range=True), chain, ranges, probes(images))
        one, two = Interpreter(chain.mod, optimized=True), Interpreter(model.mod, optimized=True)
        return float(np.abs(np.mean([two(feed)["y"] - one(feed)["y"] for feed in images], axis=0)).max())

    assert shift(["correct_bias"]) < 0.5 * shift([])


def test_auto_chooses_the_best_method(chain: ONNXModule, images: list[Feed]) -> None:
    ranges = learn(chain, images)
    evaluator = Evaluator.of(Network(prepare(chain.mod)), probes(images))

    def noise(method: str) -> float:
        config = settings(improve=[], calib_method=method)
        return evaluator.sqnr(quantize_statically(config, chain, ranges, probes(images))[0].mod)

    methods = ("minmax", "mse", "percentile", "entropy", "average")
    assert noise("auto") == max(noise(method) for method in methods)


def test_splitting_keeps_the_function_and_gives_each_half_its_scale(chain: ONNXModule, images: list[Feed]) -> None:
    network = Network(prepare(chain.mod))
    changed = split(network)
    assert changed is not None
    same_function(network.model, changed.model, images)
    onnx.checker.check_model(changed.model, full_check=True)
    assert ONNXModule(changed.model).operators["Concat"] == 2  # the depthwise convolution stays whole
    assert split(changed) is not changed


def test_the_cut_is_between_large_and_small_channels() -> None:
    weights = np.array([1.0, 1.0, 1.0, 8.0], np.float32).reshape(4, 1, 1, 1)
    assert best_cut(weights) == 3
    assert best_cut(np.ones((6, 1, 1, 1), np.float32)) == 3


def classes(model: ONNXModule, feeds: list[Feed]) -> Any:
    session = Interpreter(model.mod, optimized=True)
    return np.concatenate([session(feed)["y"].argmax(axis=1) for feed in feeds])


def test_a_budget_puts_as_few_layers_as_it_takes_back_to_float(chain: ONNXModule, images: list[Feed]) -> None:
    spoiled = hostile(chain)
    ranges, labelled = learn(spoiled, images), probes(images, classes(chain, images))
    coarse = {"improve": [], "per_channel": False, "reduce_range": True}
    _, before = quantize_statically(settings(max_drop=100.0, **coarse), spoiled, ranges, labelled)
    assert before["put_back_to_float"] == []
    assert before["drop"] > 0.0
    model, report = quantize_statically(settings(max_drop=0.0, **coarse), spoiled, ranges, labelled)
    assert report["drop"] <= 0.0
    assert 0 < len(report["put_back_to_float"]) < 5
    assert set(report["put_back_to_float"]) == set(report["float_layers"])
    assert list(report["sensitivity_db"].values()) == sorted(report["sensitivity_db"].values())
    assert list(report["sensitivity_db"])[: len(report["put_back_to_float"])] == report["put_back_to_float"]
    assert (classes(model, images) == classes(chain, images)).all()


def test_a_budget_that_only_floats_keep_is_refused(parse: Parse) -> None:
    net = parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 2] x) => (float[1, 2] y) { y = Gemm(x, w, b) }""",
        {"w": np.array([[1.0, 0.9999], [1.0, 0.9999]], np.float32), "b": np.zeros(2, np.float32)},
    )
    feeds: list[Feed] = [{"x": np.array([[i - 4.0, 0.03]], np.float32)} for i in range(9)]
    with pytest.raises(VerificationError) as refusal:
        quantize_statically(
            settings(improve=[], max_drop=0.0, per_channel=False), net, learn(net, feeds),
            probes(feeds, classes(net, feeds)),
        )  # fmt: skip
    assert refusal.value.where == "quantize.max_drop"


def test_a_budget_needs_classes(parse: Parse) -> None:
    net = parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) { y = Conv(x, w) }""",
        {"w": np.ones((4, 3, 1, 1), np.float32)},
    )
    feeds: list[Feed] = [{"x": np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)}]
    with pytest.raises(ConfigError) as refusal:
        quantize_statically(settings(max_drop=1.0), net, learn(net, feeds), probes(feeds))
    assert refusal.value.expected == "a model whose first output is [batch, classes], to count top-1 on"


def test_choices_without_samples_to_try_them_on_are_refused(chain: ONNXModule, images: list[Feed]) -> None:
    with pytest.raises(DataError, match="quantize: expected samples to try choices on, found none"):
        quantize_statically(settings(improve=["equalize"]), chain, learn(chain, images))


def test_a_budget_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"quantize\.max_drop: expected null, or percentage points from 0 to 100"):
        settings(max_drop=-1.0)
