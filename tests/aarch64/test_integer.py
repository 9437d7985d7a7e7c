"""Quantized models on emulated devices: every way of multiplying bytes stores what ONNX Runtime stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.runtime.engine import Engine
from forge_pipeline.target import Target
from tests.aarch64.test_emulated import EMULATED, emulate
from tests.codegen import test_integer as qdq
from tests.codegen import test_integer_batched as batched
from tests.codegen import test_integer_dynamic as dynamic
from tests.codegen import test_integer_residual as residual
from tests.codegen import test_integer_unsized as unsized
from tests.codegen import test_integer_weights as weights
from tests.trained import in_bytes

SMULL, SDOT, I8MM = "arm/cortex-a72", "arm/cortex-a76", "arm/neoverse-v1"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (EMULATED / "ready").exists(), reason=f"no emulated aarch64 in {EMULATED}: run tests/aarch64/setup.sh"
    ),
]


def run(model: onnx.ModelProto, tag: str, x: Any, compile_for: Callable[..., bytes], folder: Path) -> list[Any]:
    """Return what an emulated target makes of a model with one input, x."""
    target = Target.from_tag(tag)
    return list(emulate(compile_for(model, target), target, {"x": x}, folder).values())


def compare(net: qdq.Net, outputs: list[str], tag: str, compile_for: Callable[..., bytes], folder: Path) -> None:
    """Compare with ONNX Runtime on values that reach both ends of the input's range."""
    model = net.finish(*outputs)
    x = (net.random.standard_normal(net.shape) * 40).astype(np.float32)
    found = run(model, tag, x, compile_for, folder)
    for have, want in zip(found, qdq.reference(model, x, optimized=False), strict=True):
        assert len(np.unique(want)) > 3
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("tag", ["raspberry-pi/5", "raspberry-pi/3b", "arm/generic", I8MM])
def test_convolutions_and_products_store_what_onnx_runtime_stores(
    tag: str, compile_for: Callable[..., bytes], tmp_path: Path
) -> None:
    net = qdq.Net(1, 16, 9, 9)
    same = {"pads": [1] * 4}
    flat = net.node("Flatten", net.pair("x", qdq.IN))
    product = net.node("MatMul", flat, net.weight((16 * 81, 24), qdq.exact_scales(24) / 64, axis=1))
    outputs = [
        net.pair(qdq.convolution(net, 16, 24, 3, **same), qdq.OUT),
        net.pair(qdq.convolution(net, 16, 16, 3, 16, **same), qdq.OUT),
        net.pair(product, qdq.OUT),
    ]
    compare(net, outputs, tag, compile_for, tmp_path)


@pytest.mark.parametrize("tag", [SMULL, SDOT, I8MM])
@pytest.mark.parametrize("size", [(8, 16), (7, 9)])
def test_residual_blocks_store_what_onnx_runtime_stores(
    size: tuple[int, int], tag: str, compile_for: Callable[..., bytes], tmp_path: Path
) -> None:
    net = qdq.Net(2, 16, *size)
    branches = (residual.MAIN, residual.SHORTCUT, residual.NEITHER)
    outputs = [residual.block(net, 16, 24, 1, stride, stored) for stride in (1, 2) for stored in branches]
    compare(net, outputs, tag, compile_for, tmp_path)


@pytest.mark.parametrize("tag", [SMULL, SDOT, I8MM])
@pytest.mark.parametrize("case", ["convolution", "depthwise"])
def test_weights_of_the_least_byte_store_what_onnx_runtime_stores(
    case: str, tag: str, compile_for: Callable[..., bytes], tmp_path: Path
) -> None:
    shape, layers = weights.NETS[case]
    net = weights.Signed(*shape)
    compare(net, [net.pair(layers(net), qdq.OUT)], tag, compile_for, tmp_path)


@pytest.mark.parametrize("tag", [SMULL, SDOT, I8MM])
@pytest.mark.parametrize("case", ["convolution", "depthwise", *weights.GROUPED])
def test_bytes_with_any_zero_point_store_what_onnx_runtime_stores(
    case: str, tag: str, compile_for: Callable[..., bytes], tmp_path: Path
) -> None:
    shape, layers = {**weights.NETS, **weights.GROUPED}[case]
    net = weights.Unsigned(*shape)
    compare(net, [net.pair(layers(net), qdq.OUT)], tag, compile_for, tmp_path)


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
def test_convolutions_of_every_form_store_what_onnx_runtime_stores(
    shape: tuple[int, ...], tag: str, compile_for: Callable[..., bytes], tmp_path: Path
) -> None:
    net = qdq.Net(*shape)
    results = [
        qdq.convolution(net, shape[1], filters, kernel, groups, **attributes)
        for filters, kernel, groups, attributes in FORMS.values()
    ]
    for kernel, stride in ((3, 2), (5, 1)):
        sizes = {"pads": [kernel // 2] * 4, "strides": [stride] * 2}
        results.append(qdq.convolution(net, shape[1], shape[1], kernel, shape[1], **sizes))
    relu = net.pair(net.node("Relu", qdq.convolution(net, shape[1], 12, 3)), (32.0, 0))
    unclipped = net.node("Clip", results[1], net.tensor(np.float32(-500)), net.tensor(np.float32(700)))
    outputs = [*(net.pair(result, qdq.OUT) for result in results[2:]), relu, net.pair(unclipped, qdq.OUT), results[0]]
    compare(net, outputs, tag, compile_for, tmp_path)


@pytest.mark.parametrize("tag", [SMULL, SDOT, I8MM])
@pytest.mark.parametrize("shape", [(37, 50), (1, 64), (1, 6, 40)])
def test_products_of_every_size_store_what_onnx_runtime_stores(
    shape: tuple[int, ...], tag: str, compile_for: Callable[..., bytes], tmp_path: Path
) -> None:
    net = qdq.Net(*shape)
    outputs = []
    for columns in (5, 24, 130):
        weight = net.weight((shape[-1], columns), qdq.exact_scales(columns), axis=1)
        y = net.node("MatMul", net.pair("x", qdq.IN), weight)
        outputs.append(net.pair(net.node("Add", y, net.tensor(np.arange(columns).astype(np.float32) * 32)), qdq.OUT))
    compare(net, outputs, tag, compile_for, tmp_path)


@pytest.mark.parametrize("tag", [SMULL, SDOT, I8MM])
@pytest.mark.parametrize("case", dynamic.CASES)
def test_products_of_measured_bytes_agree_with_onnx_runtime(
    case: str, tag: str, compile_for: Callable[..., bytes], tmp_path: Path
) -> None:
    net = qdq.Net(*dynamic.CASES[case][0])
    measured = dynamic.measured(net, "x")
    model = net.finish(measured, net.node("Relu", dynamic.layer(net, measured, case)))
    x = (net.random.standard_normal(net.shape) * 3 + 1).astype(np.float32)
    (bytes_, found), (same, wanted) = (
        run(model, tag, x, compile_for, tmp_path),
        qdq.reference(model, x, optimized=False),
    )
    np.testing.assert_array_equal(bytes_, same)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("tag", [SMULL, SDOT, I8MM])
def test_products_of_two_activations_store_what_onnx_runtime_stores(
    tag: str, compile_for: Callable[..., bytes], tmp_path: Path
) -> None:
    net, result = batched.product(2, 9, 20, 19)
    compare(net, [net.pair(result, (512.0, 88))], tag, compile_for, tmp_path)


@pytest.fixture(scope="module", params=["digits", "resnet8"])
def trained(request: pytest.FixtureRequest) -> tuple[onnx.ModelProto, list[dict[str, Any]]]:
    """A quantized model, and samples of its data."""
    return in_bytes(request.param)


@pytest.mark.parametrize("tag", ["arm/cortex-a53", SDOT, I8MM])
def test_a_trained_model_computes_the_same_as_on_an_x86(
    trained: tuple[onnx.ModelProto, list[dict[str, Any]]], tag: str, compile_for: Callable[..., bytes], tmp_path: Path
) -> None:
    model, feeds = trained
    here, target = (
        Engine(build(model, Target.from_tag("host"), qdq.OPTIONS).to_bytes(), threads=1),
        Target.from_tag(tag),
    )
    library = compile_for(model, target)
    for at, feed in enumerate(feeds):
        folder = tmp_path / str(at)
        folder.mkdir()
        for name, found in emulate(library, target, feed, folder).items():
            np.testing.assert_array_equal(found, here.run(**feed)[name])


@pytest.mark.parametrize("tag", [SMULL, SDOT, I8MM])
def test_transposed_kernels_volumes_and_dilated_filters_store_what_onnx_runtime_stores(
    tag: str, compile_for: Callable[..., bytes], tmp_path: Path
) -> None:
    net = qdq.Net(1, 16, 12, 11)
    image = net.pair("x", qdq.IN)
    deep = net.node("Reshape", image, net.tensor(np.array([1, 16, 3, 4, 11])))
    scales = qdq.exact_scales(16)
    dilated = {"group": 16, "dilations": [2, 3], "pads": [2, 3, 1, 2]}
    up = net.node("ConvTranspose", image, net.weight((16, 16, 3, 3), scales, axis=1), strides=[2, 2])
    outputs = [
        net.pair(up, qdq.OUT),
        net.pair(net.node("Conv", deep, net.weight((16, 16, 3, 3, 3), scales), pads=[1] * 6), (1024.0, 100)),
        net.pair(net.node("Conv", image, net.weight((16, 1, 3, 3), scales), **dilated), qdq.OUT),
    ]
    compare(net, outputs, tag, compile_for, tmp_path)


@pytest.mark.parametrize("tag", ["arm/generic", SDOT, I8MM])
@pytest.mark.parametrize("size", [(9, 7), (1, 3)])
def test_convolutions_of_images_of_any_size_store_what_onnx_runtime_stores(
    tag: str, size: tuple[int, int], compile_for: Callable[..., bytes], tmp_path: Path
) -> None:
    model = unsized.kinds(["pointwise", "padded", "strided", "grouped", "depthwise"])
    x = (np.random.default_rng(1).standard_normal((1, 16, *size)) * 40).astype(np.float32)
    found = run(model, tag, x, compile_for, tmp_path)
    for have, want in zip(found, qdq.reference(model, x, optimized=False), strict=True):
        np.testing.assert_array_equal(have, want)
