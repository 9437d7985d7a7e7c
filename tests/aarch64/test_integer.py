"""Quantized models on emulated devices: trained ones, and tiles that no other test of integer code has.

All other tests of integer code run for ARM as well: tests/emulated/test_operators.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.emulated.aarch64 import QEMU
from tests.support.emulated.choice import emulated
from tests.support.int8.compare import OPTIONS, reference
from tests.support.int8.net import IN, OUT, Net, convolution, exact_scales
from tests.support.trained import in_bytes

SMULL, SDOT, I8MM = "arm/cortex-a72", "arm/cortex-a76", "arm/neoverse-v1"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(QEMU is None, reason="qemu-aarch64 is not installed: apt-get install qemu-user"),
]


def run(model: onnx.ModelProto, tag: str, feeds: list[dict[str, Any]]) -> list[list[Any]]:
    """Return what an emulated target makes of each of the inputs."""
    target = Target.from_tag(tag)
    library = build(model, target, OPTIONS).to_bytes()
    return emulated(target).run(library, *(((), feed) for feed in feeds)).outputs


def compare(net: Net, outputs: list[str], tag: str) -> None:
    """Compare with ONNX Runtime on values that reach both ends of the input's range."""
    model = net.finish(*outputs)
    x = (net.random.standard_normal(net.shape) * 40).astype(np.float32)
    (found,) = run(model, tag, [{"x": x}])
    for have, want in zip(found, reference(model, x, optimized=False), strict=True):
        assert len(np.unique(want)) > 3
        np.testing.assert_array_equal(have, want)


FORMS: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "pixels by themselves": (24, 1, 1, {}),
    "padded": (48, 3, 1, {"pads": [1] * 4}),
    "strided": (16, 3, 1, {"pads": [0, 0, 1, 1], "strides": [2, 2]}),
    "dilated": (20, 3, 1, {"dilations": [2, 2]}),
    "groups": (32, 3, 2, {"pads": [1] * 4}),
    "five by five": (10, 5, 1, {"pads": [2] * 4}),
}
"""Filters, kernel, groups and attributes."""


@pytest.mark.parametrize("tag", [SMULL, SDOT, I8MM])
@pytest.mark.parametrize("shape", [(1, 32, 8, 16), (2, 20, 13, 10)])
def test_convolutions_of_every_form_store_what_onnx_runtime_stores(shape: tuple[int, ...], tag: str) -> None:
    net = Net(*shape)
    results = [
        convolution(net, shape[1], filters, kernel, groups, **attributes)
        for filters, kernel, groups, attributes in FORMS.values()
    ]
    for kernel, stride in ((3, 2), (5, 1)):
        sizes = {"pads": [kernel // 2] * 4, "strides": [stride] * 2}
        results.append(convolution(net, shape[1], shape[1], kernel, shape[1], **sizes))
    relu = net.pair(net.node("Relu", convolution(net, shape[1], 12, 3)), (32.0, 0))
    unclipped = net.node("Clip", results[1], net.tensor(np.float32(-500)), net.tensor(np.float32(700)))
    outputs = [*(net.pair(result, OUT) for result in results[2:]), relu, net.pair(unclipped, OUT), results[0]]
    compare(net, outputs, tag)


@pytest.mark.parametrize("tag", [SMULL, SDOT, I8MM])
@pytest.mark.parametrize("shape", [(37, 50), (1, 64), (1, 6, 40)])
def test_products_of_every_size_store_what_onnx_runtime_stores(shape: tuple[int, ...], tag: str) -> None:
    net = Net(*shape)
    outputs = []
    for columns in (5, 24, 130):
        weight = net.weight((shape[-1], columns), exact_scales(columns), axis=1)
        y = net.node("MatMul", net.pair("x", IN), weight)
        outputs.append(net.pair(net.node("Add", y, net.tensor(np.arange(columns).astype(np.float32) * 32)), OUT))
    compare(net, outputs, tag)


@pytest.fixture(scope="module", params=["digits", "resnet8", "kws", "mnist-8"])
def trained(request: pytest.FixtureRequest) -> tuple[onnx.ModelProto, list[dict[str, Any]], list[list[Any]]]:
    """A quantized model, samples of its data, and what this CPU makes of them, in vectors as wide."""
    model, feeds = in_bytes(request.param)
    here = Engine(build(model, Target.from_tag("x86-64/v2"), OPTIONS).to_bytes(), threads=1)
    return model, feeds, [here(**feed) for feed in feeds]


@pytest.mark.parametrize("tag", ["arm/cortex-a53", SDOT, I8MM])
def test_a_trained_model_computes_the_same_as_on_an_x86(trained: Any, tag: str) -> None:
    model, feeds, wanted = trained
    for found, same in zip(run(model, tag, feeds), wanted, strict=True):
        for have, want in zip(found, same, strict=True):
            np.testing.assert_array_equal(have, want)
