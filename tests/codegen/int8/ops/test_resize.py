"""Bytes that are resized between other integers: stored as ONNX Runtime stores them, and never floats in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.int8.compare import HERE, OPTIONS, check, compiled, reference
from tests.support.int8.net import OUT, Net, exact_scales, unsized
from tests.support.sums import assert_same_sums

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


@pytest.mark.every(2)
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


REPEATED = (((2.0, 2.0), "floor", {"repeat"}), ((1.0, 3.0), "floor", {"repeat"}), ((2.0, 1.5), "ceil", {"take"}))
"""Factors, rounding, and what the kernels are called that choose pixels: whole factors take no table."""


@pytest.mark.every(2)
@pytest.mark.parametrize(("factors", "rounding", "kernels"), REPEATED)
def test_pixels_that_a_sum_reads_several_times_are_read_where_they_lie(
    factors: Any, rounding: str, kernels: set[str]
) -> None:
    net, scale = Net(1, 16, 8, 6), exact_scales(16)
    read = net.node("Conv", net.pair("x", (0.5, 113)), net.weight((16, 16, 1, 1), scale), net.bias(scale * 0.5))
    how = {"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": "asymmetric"}
    larger = net.node("Resize", net.pair(read, OUT), "", net.tensor(np.array([1, 1, *factors], np.float32)), **how)
    other = net.node("MaxPool", net.pair(larger, OUT), kernel_shape=[3, 3], pads=[1] * 4)
    model = net.finish(net.pair(net.node("Add", net.pair(larger, OUT), other), (32.0, 3)))
    x = (net.random.standard_normal(net.shape) * 40).astype(np.float32)
    np.testing.assert_array_equal(compiled(model)(x)[0], reference(model, x, optimized=False)[0])
    engine = Engine(build(model, Target.from_tag("host"), OPTIONS).to_bytes(), threads=1)
    names = {name for kernel in engine.profile(x, runs=1) for name in kernel.name.split("_")}
    assert names & {"take", "repeat"} == kernels


def expect_same(model: onnx.ModelProto, seed: int = 5) -> None:
    """Compare results of images of several sizes, with one engine; some axes may be known."""
    engine, random = compiled(model), np.random.default_rng(seed)
    known = [extent.dim_value for extent in model.graph.input[0].type.tensor_type.shape.dim]
    for size in ((9, 7), (1, 1), (2, 23), (16, 3)):
        shape = [extent or given for extent, given in zip(known, (0, 0, *size), strict=True)]
        x = random.standard_normal(shape).astype(np.float32)
        for found, wanted in zip(engine(x), reference(model, x, optimized=False), strict=True):
            np.testing.assert_array_equal(found, wanted, err_msg=str(size))


@pytest.mark.every(2)
@pytest.mark.parametrize("axes", [(2, 3), (3,)])
def test_images_of_any_size_are_resized_as_those_of_a_known_size(axes: tuple[int, ...]) -> None:
    results = []
    net = Net(1, 16, 6, 7)
    image = net.pair("x", ODD)
    pooled = net.node("MaxPool", image, kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 1, 1])
    for way, factors, channels in WAYS:
        results.append(net.pair(resized(net, pooled if channels == 16 else image, way, factors), ODD))
    narrow = net.node("Relu", resized(net, image, "half_pixel", (1.0, 2.0)))
    expect_same(unsized(net.finish(*results, net.pair(narrow, ODD)), *axes))


def test_an_image_is_resized_to_the_size_of_another_of_any_size() -> None:
    net, scale = Net(1, 16, 8, 8), exact_scales(16)
    image = net.pair("x", (0.5, 113))
    small = net.node("Conv", image, net.weight((16, 16, 1, 1), scale), net.bias(scale * 0.5), strides=[2, 2])
    size = net.node("Slice", net.node("Shape", image), net.tensor([2]), net.tensor([4]))
    sizes = net.node("Concat", net.tensor([1, 16]), size, axis=0)
    stored = net.pair(small, OUT)
    linear = net.pair(net.node("Resize", stored, "", "", sizes, mode="linear"), (32.0, 3))
    nearest = net.node("Resize", stored, "", "", sizes, mode="nearest", nearest_mode="floor")
    expect_same(unsized(net.finish(linear, net.pair(nearest, OUT)), 2, 3))


def test_a_float_reader_gets_what_was_not_rounded() -> None:
    net = Net(1, 16, 6, 6)
    larger = resized(net, net.pair("x", ODD), "half_pixel", (2.0, 2.0))
    model = net.finish(larger)
    x = net.random.standard_normal(net.shape).astype(np.float32)
    found = compiled(model, in_float="resample")(x)[0]
    assert_same_sums(found, reference(model, x, optimized=False)[0], terms=2 * 2 * 2)  # two products on each axis
