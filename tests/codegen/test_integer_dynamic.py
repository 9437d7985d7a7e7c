"""Dynamic quantization: scales that are measured when the model runs, products in integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.codegen.test_integer import Net, compiled, reference

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "convolution": ((1, 16, 9, 9), (24, 16, 3, 3), {"pads": [1, 0, 2, 1]}),
    "convolution of three channels": ((2, 3, 12, 12), (8, 3, 3, 3), {"pads": [1] * 4, "strides": [2, 2]}),
    "depthwise": ((1, 16, 9, 9), (16, 1, 3, 3), {"pads": [1] * 4, "group": 16}),
    "product": ((3, 5, 24), (24, 17), {}),
}


def measured(net: Net, x: str) -> str:
    """Append DynamicQuantizeLinear and DequantizeLinear."""
    names = [f"{x}_{part}" for part in ("q", "scale", "zero")]
    net.nodes.append(onnx.helper.make_node("DynamicQuantizeLinear", [x], names))
    return net.node("DequantizeLinear", *names)


def layer(net: Net, x: str, case: str) -> str:
    _, shape, attributes = CASES[case]
    scale = (net.random.random(shape[-1] if len(shape) == 2 else shape[0]) / 100 + 0.001).astype(np.float32)
    weight = net.weight(shape, scale, axis=1 if len(shape) == 2 else 0)
    bias = net.tensor(net.random.standard_normal(scale.size).astype(np.float32))
    if len(shape) == 4:
        return net.node("Conv", x, weight, bias, **attributes)
    return net.node("Add", net.node("MatMul", x, weight), bias)


@pytest.mark.parametrize("case", CASES)
def test_a_product_of_measured_bytes_is_one_of_integers(case: str) -> None:
    net = Net(*CASES[case][0])
    x = measured(net, "x")
    model = net.finish(x, net.node("Relu", layer(net, x, case)))
    engine = compiled(model)
    for values in (net.random.standard_normal(net.shape) * 3 + 1, np.zeros(net.shape), np.full(net.shape, -2.0)):
        feed = values.astype(np.float32)
        (bytes_, found), (same, wanted) = engine(feed), reference(model, feed, optimized=False)
        np.testing.assert_array_equal(bytes_, same)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6 * np.abs(wanted).max())


def test_a_whole_model_is_measured_layer_by_layer() -> None:
    net = Net(1, 3, 12, 12)
    y = net.node("Relu", layer(net, measured(net, "x"), "convolution of three channels"))
    y = net.node("Flatten", net.node("GlobalAveragePool", net.node("Sigmoid", y)))
    weight = net.weight((8, 10), np.float32(0.01), axis=1)
    model = net.finish(net.node("MatMul", measured(net, y), weight))
    feed = net.random.standard_normal(net.shape).astype(np.float32)
    found, wanted = compiled(model, in_float="")(feed)[0], reference(model, feed, optimized=False)[0]
    assert np.abs(found - wanted).max() < 0.01 * np.abs(wanted).max()
