"""Dynamic quantization: scales that are measured when the model runs, products in integers."""

from __future__ import annotations

import numpy as np
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.target import Target
from tests.support.emulated.choice import load
from tests.support.int8.compare import HERE, OPTIONS, compiled, reference
from tests.support.int8.dynamic import CASES, layer, measured
from tests.support.int8.net import Net, unsized


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


def test_what_follows_a_convolution_of_computed_extents_has_a_kernel() -> None:
    net = Net(2, 3, 12, 12)
    y = net.node("Tanh", layer(net, measured(net, "x"), "convolution of three channels"))
    weight = net.weight((8, 1, 5, 5), np.full(8, 0.01, np.float32))
    y = net.node("Tanh", net.node("Conv", measured(net, y), weight, pads=[2] * 4, group=8))
    model = unsized(net.finish(y), 0, 2, 3)
    engine = load(build(model, Target.from_tag(HERE), OPTIONS).to_bytes(), Target.from_tag(HERE))
    for shape in ((2, 3, 12, 12), (1, 3, 17, 21)):
        feed = net.random.standard_normal(shape).astype(np.float32)
        found, wanted = engine(feed)[0], reference(model, feed, optimized=False)[0]
        assert np.abs(found - wanted).max() < 0.02  # a step of what is measured between them
