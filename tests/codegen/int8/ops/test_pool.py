"""Pools of bytes over one, two and three axes: what is stored, bit for bit, and what stays in bytes around them.

ONNX Runtime without optimizations is the reference; scales are powers of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.int8.compare import HERE, check, compiled, reference
from tests.support.int8.net import IN, Net, exact_scales, unsized
from tests.support.sums import assert_close

SPREAD = 15.0
"""Of inputs: few of them reach an end of the range, so that the largest of many differ."""

FEW = settings(max_examples=4, deadline=None, derandomize=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool: its operator, shape of its image, and attributes."""

    operator: str
    shape: tuple[int, ...]
    attributes: dict[str, Any]


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    """Draw a pool whose windows all see a pixel, as ONNX Runtime wants it."""
    axes, operator = draw(st.integers(1, 3)), draw(st.sampled_from(["MaxPool", "AveragePool"]))

    def along(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=axes, max_size=axes))

    kernel = along(1, 4 if axes < 3 else 3)
    dilations = along(1, 2) if operator == "MaxPool" else [1] * axes
    pads = [min(pad, size - 1) for pad, size in zip(along(0, 2) + along(0, 2), kernel * 2, strict=True)]
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": along(1, 3), "pads": pads}
    if operator == "MaxPool":
        attributes["dilations"] = dilations
    else:
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    ends = zip(pads[axes:], attributes["strides"], kernel, strict=True)
    if operator == "MaxPool" or all(after + stride <= size for after, stride, size in ends):
        attributes["ceil_mode"] = draw(st.integers(0, 1))  # else a window may start behind the image
    size = [least + more for least, more in zip(reach, along(3, 8), strict=True)]
    shape = (draw(st.integers(1, 2)), draw(st.sampled_from([3, 8, 20])), *size)
    return Pool(operator=operator, shape=shape, attributes=attributes)


def expect_same(pool: Pool, tag: str = HERE) -> None:
    """Compare what a pool stores."""
    net = Net(*pool.shape)
    y = net.node(pool.operator, net.pair("x", IN), **pool.attributes)
    check(net, net.pair(y, IN), tag=tag, spread=SPREAD)


@FEW
@given(pool=pools())
def test_every_pool_stores_what_onnx_runtime_stores(pool: Pool) -> None:
    expect_same(pool)


@pytest.mark.long
@settings(FEW, max_examples=300)
@given(pool=pools())
def test_many_pools_store_what_onnx_runtime_stores(pool: Pool) -> None:
    expect_same(pool)


@pytest.mark.parametrize(("size", "pads"), [(6, 2), (4, 1)])
def test_a_mean_that_counts_padding_starts_no_window_behind_the_image(size: int, pads: int) -> None:
    attributes = {"kernel_shape": [3, 3], "strides": [3, 2], "pads": [pads] * 4, "count_include_pad": 1, "ceil_mode": 1}
    expect_same(Pool(operator="AveragePool", shape=(1, 8, size, size), attributes=attributes))


VOLUME: dict[str, Any] = {"kernel_shape": [3, 2, 3], "strides": [2, 2, 1], "pads": [1, 0, 1, 0, 1, 1]}


@pytest.mark.parametrize("tag", [HERE, pytest.param("x86-64/v2", marks=pytest.mark.long)])
def test_volumes_are_images_from_convolution_to_pool_to_convolution(tag: str) -> None:
    net, scale = Net(1, 16, 6, 8, 9), exact_scales(16)
    y = net.pair(net.node("Conv", net.pair("x", IN), net.weight((16, 16, 1, 3, 3), scale)), (512.0, 120))
    largest = net.node("MaxPool", y, **VOLUME)
    mean = net.pair(net.node("AveragePool", largest, **VOLUME), (256.0, 118))
    last = net.pair(net.node("Conv", mean, net.weight((16, 16, 1, 2, 1), scale)), (2.0**17, 121))
    check(net, last, net.pair(net.node("GlobalAveragePool", y), (128.0, 118)), largest, tag=tag, spread=SPREAD)


@pytest.mark.parametrize("shape", [(2, 20, 9, 7), (1, 8, 3, 5, 4)])
def test_the_largest_and_the_mean_of_all_pixels_are_those_of_bytes(shape: tuple[int, ...]) -> None:
    net = Net(*shape)
    x = net.pair("x", IN)
    check(net, net.node("GlobalMaxPool", x), net.pair(net.node("GlobalAveragePool", x), (0.0625, 100)), spread=SPREAD)


def test_a_mean_of_volumes_that_is_read_in_float_is_computed_of_bytes() -> None:
    net = Net(1, 8, 5, 6, 7)
    model = net.finish(net.node("AveragePool", net.pair("x", IN), **VOLUME))
    x = (net.random.standard_normal(net.shape) * SPREAD).astype(np.float32)
    assert_close(compiled(model)(x)[0], reference(model, x, optimized=False)[0], within=1e-6)


def test_the_batch_of_pooled_volumes_may_be_symbolic() -> None:
    net = Net(1, 8, 5, 6, 7)
    y = net.pair(net.node("AveragePool", net.pair("x", IN), **VOLUME), IN)
    model = unsized(net.finish(net.node("GlobalMaxPool", net.node("MaxPool", y, kernel_shape=[2, 2, 2]))), 0)
    engine = compiled(model)
    for batch in (1, 3):
        x = (net.random.standard_normal((batch, *net.shape[1:])) * SPREAD).astype(np.float32)
        np.testing.assert_array_equal(engine(x)[0], reference(model, x, optimized=False)[0])
