"""Dynamic quantization: scales that are measured when the model runs, products in integers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.int8.compare import compiled, reference
from tests.support.int8.dynamic import CASES, layer, measured
from tests.support.int8.net import Net


@pytest.mark.every(6)
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
