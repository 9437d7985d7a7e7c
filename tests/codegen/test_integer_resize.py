"""Bytes that are resized between other integers: stored as ONNX Runtime stores them, and never floats in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.codegen.test_integer import HERE, OUT, Net, check, compiled, exact_scales, reference

WAYS = (
    ("half_pixel", (2.0, 2.0), 16),
    ("half_pixel", (1.5, 3.0), 3),
    ("align_corners", (2.0, 3.0), 16),
    ("asymmetric", (1.5, 2.0), 3),
    ("pytorch_half_pixel", (0.5, 2.0), 16),
)
"""Places of pixels, factors, and channels: blocks are filled, or the image is not in blocks."""

ODD = (0.0173, 101)
"""A scale that is no power of two: dequantized values are rounded."""


def resized(net: Net, source: str, way: str, factors: tuple[float, float]) -> str:
    scales = net.tensor(np.array([1, 1, *factors], np.float32))
    return net.node("Resize", source, "", scales, mode="linear", coordinate_transformation_mode=way)


@pytest.mark.parametrize(("way", "factors", "channels"), WAYS)
def test_what_is_stored_is_what_floats_would_have_been_rounded_to(way: str, factors: Any, channels: int) -> None:
    net = Net(1, channels, 10, 14)
    image = net.pair("x", ODD)
    if channels == 16:
        image = net.node("MaxPool", image, kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 1, 1])
    check(net, net.pair(resized(net, image, way, factors), ODD), spread=1.0)


@pytest.mark.parametrize("tag", [HERE, "x86-64/v2"])
def test_between_convolutions_and_along_one_axis(tag: str) -> None:
    net = Net(1, 16, 8, 8)
    scale = exact_scales(16)
    read = net.node("Conv", net.pair("x", (0.5, 113)), net.weight((16, 16, 1, 1), scale), net.bias(scale * 0.5))
    check(net, net.pair(resized(net, net.pair(read, OUT), "half_pixel", (1.0, 2.0)), (32.0, 3)), tag=tag)


def test_a_float_reader_gets_what_was_not_rounded() -> None:
    net = Net(1, 16, 6, 6)
    larger = resized(net, net.pair("x", ODD), "half_pixel", (2.0, 2.0))
    model = net.finish(larger)
    x = net.random.standard_normal(net.shape).astype(np.float32)
    found = compiled(model, in_float="resample")(x)[0]
    np.testing.assert_allclose(found, reference(model, x, optimized=False)[0], rtol=1e-5, atol=1e-6)
