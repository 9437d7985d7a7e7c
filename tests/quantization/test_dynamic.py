"""Dynamic quantization: no data, integer weights, operators that TVM imports."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import yaml

from forge_pipeline.config import bind
from forge_pipeline.data import Feed
from forge_pipeline.errors import ModelError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.batch_size import with_batch_size
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.locate import conf_dir
from forge_pipeline.quantization.build import quantize_dynamically
from forge_pipeline.quantization.dynamic import quantize_dynamic
from forge_pipeline.quantization.integers import INTEGERS
from forge_pipeline.quantization.network import Network, prepare
from forge_pipeline.quantization.plan import make_plan
from forge_pipeline.quantization.settings import Config
from forge_pipeline.quantization.weights import WeightScheme

Parse = Callable[..., ONNXModule]
STATIC = yaml.safe_load((conf_dir() / "quantize" / "static.yaml").read_text())
SETTINGS = bind(Config, {**STATIC, "method": "dynamic"}, where="quantize")
SCHEME = WeightScheme(kind=INTEGERS["int8"], limit=127, per_channel=True)


def quantized(net: ONNXModule) -> ONNXModule:
    network = Network(prepare(net.mod))
    return ONNXModule(quantize_dynamic(network, make_plan(network), SCHEME))


def test_the_result_is_valid_deterministic_and_close(net: ONNXModule, feeds: list[Feed]) -> None:
    model = quantized(net)
    onnx.checker.check_model(model.mod, full_check=True)
    assert model.to_bytes() == quantized(net).to_bytes()
    exact, near = Interpreter(net.mod, optimized=True), Interpreter(model.mod)
    for feed in feeds:
        wanted, found = exact(feed)["scores"], near(feed)["scores"]
        assert np.abs(wanted - found).max() < 0.05 * np.abs(wanted).max()


def test_a_value_that_several_layers_read_is_measured_once(net: ONNXModule) -> None:
    assert quantized(net).operators["DynamicQuantizeLinear"] == 5


def test_tvm_computes_what_onnx_runtime_does(net: ONNXModule, feeds: list[Feed]) -> None:
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    model = with_batch_size(quantized(net), 1)
    machine = relax.VirtualMachine(tvm.compile(from_onnx(model.mod), "llvm"), tvm.cpu())
    reference = Interpreter(model.mod)
    for feed in feeds[:5]:
        found = machine["main"](tvm.runtime.tensor(feed["image"])).numpy()
        np.testing.assert_allclose(found, reference(feed)["scores"], atol=2e-2)


def test_a_product_of_two_activations_is_named_as_one_in_float(parse: Parse) -> None:
    weights = {"w": np.ones((4, 4), np.float32)}
    net = parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[4, 4] x) => (float[4, 4] y) { a = MatMul(x, w) y = MatMul(a, x) }""",
        weights,
    )
    model, report = quantize_dynamically(SETTINGS, net)
    assert report["integer_layers"] == ["MatMul_0"]
    assert report["float_layers"] == {"MatMul_1": "both its operands are computed"}
    assert model.operators["DynamicQuantizeLinear"] == 1


def test_a_model_without_weights_to_quantize_is_refused(parse: Parse) -> None:
    net = parse(
        """<ir_version: 10, opset_import: ["": 17]>
        net (float[4, 4] x) => (float[4, 4] y) { y = MatMul(x, x) }""",
        {},
    )
    with pytest.raises(ModelError, match=r"none: MatMul_0.*both its operands are computed"):
        quantize_dynamically(SETTINGS, net)
