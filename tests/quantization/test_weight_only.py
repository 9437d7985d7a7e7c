"""Small weights and half precision: smaller, close, and exact in what is refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_pipeline.config import bind
from forge_pipeline.data import Feed
from forge_pipeline.errors import ModelError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.locate import conf_dir
from forge_pipeline.quantization.accuracy.evaluator import Evaluator
from forge_pipeline.quantization.build import quantize_weights
from forge_pipeline.quantization.calibration.probes import Probe
from forge_pipeline.quantization.float16 import to_float16
from forge_pipeline.quantization.network import Network, prepare
from forge_pipeline.quantization.settings import Config
from forge_pipeline.quantization.weight_only import block_scales, compress_weights

Parse = Callable[..., ONNXModule]
CONFIG = {**yaml.safe_load((conf_dir() / "quantize/static.yaml").read_text()), "method": "weights"}


@pytest.fixture
def network(parse: Parse) -> Network:
    draw = np.random.default_rng(3)
    weights = {
        "u": (draw.normal(size=(160, 256)) / 12).astype(np.float32),
        "v": (draw.normal(size=(128, 256)) / 16).astype(np.float32),
        "b": draw.normal(size=128).astype(np.float32),
        "w": draw.normal(size=(128, 4)).astype(np.float32),
    }
    return Network(prepare(parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 160] x) => (float[1, 4] y)
        { a = MatMul(x, u) r = Relu(a) g = Gemm<transB=1>(r, v, b) y = MatMul(g, w) }""",
        weights,
    ).mod))  # fmt: skip


@pytest.fixture
def evaluator(network: Network) -> Evaluator:
    draw = np.random.default_rng(4)
    feeds: list[Feed] = [{"x": draw.normal(size=(1, 160)).astype(np.float32)} for _ in range(16)]
    return Evaluator.of(network, [Probe.of(feed, None) for feed in feeds])


@pytest.mark.parametrize(
    ("bits", "block", "least", "ratio"), [(4, 32, 16.0, 5.0), (4, 128, 14.0, 6.0), (8, 32, 38.0, 3.0)]
)
def test_weights_in_blocks_are_small_and_close(
    network: Network, evaluator: Evaluator, bits: int, block: int, least: float, ratio: float
) -> None:
    small = compress_weights(network, bits=bits, block_size=block, keep_float=())
    onnx.checker.check_model(small.model, full_check=True)
    assert evaluator.sqnr(small.model) > least
    assert small.bytes_before > ratio * small.bytes_after
    assert small.layers == ("MatMul_0", "Gemm_2")  # the last is too small to pay
    again = compress_weights(network, bits=bits, block_size=block, keep_float=())
    assert again.model.SerializeToString(deterministic=True) == small.model.SerializeToString(deterministic=True)


@pytest.mark.parametrize(("bits", "least"), [(4, 15.5), (8, 36.0)])
def test_activations_are_rounded_in_the_blocks_of_the_weights(
    network: Network, evaluator: Evaluator, bits: int, least: float
) -> None:
    small = compress_weights(network, bits=bits, block_size=32, keep_float=(), rounds_activations=True)
    onnx.checker.check_model(small.model, full_check=True)
    assert small.integer_layers == ("MatMul_0", "Gemm_2")
    rounding = [node for node in small.model.graph.node if node.op_type == "QuantizeLinear"]
    assert [node.input[0] for node in rounding] == ["x", "r"]
    assert least < evaluator.sqnr(small.model) < 48
    other = compress_weights(network, bits=bits, block_size=64, keep_float=(), rounds_activations=True)
    assert other.integer_layers == ("Gemm_2",)  # 160 channels are no whole blocks


def test_a_model_whose_weights_stay_in_a_file_gets_the_same_small_weights(parse: Parse, tmp_path: Path) -> None:
    weights = {"u": np.random.default_rng(5).normal(size=(160, 4096)).astype(np.float32)}
    path = tmp_path / "model.onnx"
    parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[1, 160] x) => (float[1, 4096] y) { y = MatMul(x, u) }""",
        weights,
    ).save(path, inline_bytes=1000)
    for bits in (4, 8):
        config = bind(Config, {**CONFIG, "weight_bits": bits, "block_activations": "int8"}, where="quantize")
        here, outside = ONNXModule.from_file(path), ONNXModule.from_file(path).kept_outside()
        found = [quantize_weights(config, module) for module in (here, outside)]
        assert [module.is_mapped for module, _ in found] == [False, True]
        assert found[0][0].fingerprint == found[1][0].fingerprint
        assert found[0][1] == found[1][1]
        found[1][0].save(tmp_path / "small.onnx", inline_bytes=1000)
        assert ONNXModule.from_file(tmp_path / "small.onnx").fingerprint == found[0][0].fingerprint


def test_a_large_weight_is_looked_at_a_piece_at_a_time() -> None:
    weights = np.random.default_rng(6).normal(size=(512, 8192)).astype(np.float32)
    tracemalloc.start()
    scale, steps = block_scales(weights, 0, 4, 32)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < scale.nbytes + steps.nbytes + 40 * (1 << 20)  # of all at once it is 130 MiB and more
    for columns in (slice(0, 3000), slice(3000, 8192)):
        again = block_scales(weights[:, columns], 0, 4, 32)
        np.testing.assert_array_equal(again[0], scale[:, columns])
        np.testing.assert_array_equal(again[1], steps[:, columns])


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from([4, 8]), st.integers(1, 70), st.sampled_from([0, 1]))
def test_no_cut_of_a_block_is_worse_than_rounding_to_its_largest_weight(
    seed: int, bits: int, length: int, axis: int
) -> None:
    draw = np.random.default_rng(seed)
    weights = draw.standard_t(4, size=(length, 5) if axis == 0 else (5, length)).astype(np.float32)
    scale, steps = block_scales(weights, axis, bits, 16)
    wide = np.repeat(scale, 16, axis=axis).take(range(length), axis=axis)
    largest = 2 ** (bits - 1) - 1
    assert steps.min() >= -largest - 1
    assert steps.max() <= largest
    peak = np.stack(
        [np.abs(part).max(axis=axis) for part in np.array_split(weights, range(16, length, 16), axis=axis)], axis
    )
    plain = np.repeat(peak, 16, axis=axis).take(range(length), axis=axis) / largest
    plain[plain == 0] = 1.0
    error = ((steps * wide - weights) ** 2).sum()
    assert error <= ((np.rint(weights / plain) * plain - weights) ** 2).sum() * 1.001 + 1e-12


def test_recurrent_weights_become_bytes(parse: Parse) -> None:
    draw = np.random.default_rng(6)
    weights = {name: (draw.normal(size=(1, 256, 64)) / 8).astype(np.float32) for name in "wr"}
    network = Network(prepare(parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[5, 1, 64] x) => (float[5, 1, 1, 64] y) { y = LSTM<hidden_size=64>(x, w, r) }""",
        weights,
    ).mod))  # fmt: skip
    feeds: list[Feed] = [{"x": draw.normal(size=(5, 1, 64)).astype(np.float32)} for _ in range(4)]
    small = compress_weights(network, bits=4, block_size=32, keep_float=())
    onnx.checker.check_model(small.model, full_check=True)
    assert Evaluator.of(network, [Probe.of(feed, None) for feed in feeds]).sqnr(small.model) > 35.0
    assert small.bytes_before > 3.6 * small.bytes_after


def test_a_layer_kept_in_float_is_left_alone(network: Network) -> None:
    assert compress_weights(network, bits=4, block_size=32, keep_float=("MatMul_0",)).layers == ("Gemm_2",)


def test_a_model_with_nothing_to_shrink_is_refused(net: ONNXModule) -> None:
    with pytest.raises(ModelError) as refusal:
        compress_weights(Network(prepare(net.mod)), bits=4, block_size=32, keep_float=())
    assert refusal.value.where == "quantize.method=weights"


def test_half_precision_keeps_the_interface_and_halves_the_weights(network: Network, evaluator: Evaluator) -> None:
    halved = to_float16(network)
    onnx.checker.check_model(halved.model, full_check=True)
    assert trial_sqnr(evaluator, halved.model) > 50.0
    assert halved.bytes_before == 2 * halved.bytes_after
    assert to_float16(network).model.SerializeToString(deterministic=True) == halved.model.SerializeToString(
        deterministic=True
    )


def trial_sqnr(evaluator: Evaluator, model: onnx.ModelProto) -> float:
    assert [value.name for value in model.graph.output] == list(evaluator.values)
    return evaluator.sqnr(model)


def test_a_weight_beyond_half_precision_is_refused(parse: Parse) -> None:
    network = Network(prepare(parse(
        """<ir_version: 10, opset_import: ["": 17]> net (float[1, 2] x) => (float[1, 2] y) { y = Mul(x, w) }""",
        {"w": np.array([1.0, 1e6], np.float32)},
    ).mod))  # fmt: skip
    with pytest.raises(ModelError) as refusal:
        to_float16(network)
    assert str(refusal.value).startswith("weight 'w': expected values up to 65504, the largest of float16, found 1e+06")


def test_the_fill_of_a_mask_becomes_the_largest_number_of_half_precision(parse: Parse) -> None:
    network = Network(prepare(parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[2, 2] x, float[2, 2] mask) => (float[2, 2] y, float[2] z) {
            hidden = Sub(one, mask)
            fill = Mul(hidden, lowest)
            masked = Add(x, fill)
            y = Softmax(masked)
            z = ReduceMax<axes = [1], keepdims = 0>(never)
        }""",
        {
            "one": np.float32(1), "lowest": np.float32(-3.4e38),
            "never": np.full((2, 2), -np.inf, np.float32),
        },
    ).mod))  # fmt: skip
    halved = to_float16(network)
    assert set(halved.clipped) == {"lowest"}
    feed = {"x": np.ones((2, 2), np.float32), "mask": np.array([[1, 0], [1, 1]], np.float32)}
    found = Interpreter(halved.model)(feed)
    np.testing.assert_allclose(found["y"], [[1, 0], [0.5, 0.5]], atol=1e-3)
    np.testing.assert_array_equal(found["z"], [-np.inf, -np.inf])
