"""Weights that int8 does not hold: bytes with a zero point, up to 255 from it, still exact in integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.codegen.int8.weights import split_into_parts, to_int8_or_int16
from forge_pipeline.codegen.lowering import lower
from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.target import Target
from tests.support.int8.any_size import expect_same
from tests.support.int8.compare import HERE, OPTIONS, PLAIN, SDOT, VNNI, check
from tests.support.int8.net import Net, exact_scales, unsized

IN, OUT = (0.5, 113), (64.0, 7)


class Unsigned(Net):
    """A QDQ model whose weights are uint8, with a zero point for each channel."""

    def weight(self, shape: tuple[int, ...], scale: Any, axis: int = 0, largest: int = 127) -> str:
        stored = self.tensor(self.random.choice(np.array([0, 1, 90, 180, 254, 255], np.uint8), shape))
        zero = self.tensor(np.resize(np.array([0, 93, 200, 255], np.uint8), np.shape(scale)))
        return self.node("DequantizeLinear", stored, self.tensor(np.asarray(scale, np.float32)), zero, axis=axis)


class Signed(Net):
    """A QDQ model whose weights take all that int8 holds, -128 too."""

    def weight(self, shape: tuple[int, ...], scale: Any, axis: int = 0, largest: int = 127) -> str:
        stored = self.tensor(self.random.choice(np.array([-128, -127, -1, 0, 64, 127], np.int8), shape))
        zero = self.tensor(np.zeros(np.shape(scale), np.int8))
        return self.node("DequantizeLinear", stored, self.tensor(np.asarray(scale, np.float32)), zero, axis=axis)


def convolution(channels: int, filters: int, groups: int = 1) -> Callable[[Net], str]:
    def made(net: Net) -> str:
        weight = net.weight((filters, channels // groups, 3, 3), exact_scales(filters))
        bias = net.bias(exact_scales(filters) * IN[0])
        return net.node("Conv", net.pair("x", IN), weight, bias, group=groups, pads=[1] * 4)

    return made


def product(net: Net) -> str:
    return net.node("MatMul", net.pair("x", IN), net.weight((24, 10), exact_scales(10), axis=1))


NETS: dict[str, tuple[tuple[int, ...], Callable[[Net], str]]] = {
    "convolution": ((2, 16, 9, 9), convolution(16, 24)),
    "three channels": ((1, 3, 12, 12), convolution(3, 8)),
    "depthwise": ((1, 24, 8, 8), convolution(24, 24, 24)),
    "product": ((5, 24), product),
}


@pytest.mark.parametrize("tag", dict.fromkeys([PLAIN, HERE]))
@pytest.mark.parametrize("case", NETS)
def test_weights_of_the_least_byte_store_what_onnx_runtime_stores(case: str, tag: str) -> None:
    shape, layers = NETS[case]
    net = Signed(*shape)
    check(net, net.pair(layers(net), OUT), tag=tag)


@pytest.mark.parametrize(("tag", "dtype"), [(VNNI, "int8"), (SDOT, "int8"), (PLAIN, "int8"), ("arm/generic", "int16")])
def test_the_least_byte_has_a_part_of_its_own_only_where_products_are_added_in_pairs(tag: str, dtype: str) -> None:
    weight = np.array([[[[-128]], [[127]]]])
    kept = to_int8_or_int16(Machine.of(Target.from_tag(tag)), weight)
    assert kept is not None
    assert kept.dtype == dtype
    np.testing.assert_array_equal(kept, weight)


GROUPED: dict[str, tuple[tuple[int, ...], Callable[[Net], str]]] = {
    "groups of whole vectors": ((1, 32, 7, 8), convolution(32, 32, 2)),
    "groups of a few channels": ((1, 16, 7, 8), convolution(16, 24, 4)),
    "a channel multiplied": ((1, 16, 7, 8), convolution(16, 32, 16)),
}


@pytest.mark.every(8)
@pytest.mark.parametrize("tag", dict.fromkeys([PLAIN, HERE]))
@pytest.mark.parametrize("case", [*NETS, *GROUPED])
def test_bytes_with_any_zero_point_store_what_onnx_runtime_stores(case: str, tag: str) -> None:
    shape, layers = {**NETS, **GROUPED}[case]
    net = Unsigned(*shape)
    check(net, net.pair(layers(net), OUT), tag=tag)


@pytest.mark.long
@pytest.mark.parametrize("case", ["depthwise", "groups of a few channels"])
def test_such_weights_of_images_of_any_size_store_what_onnx_runtime_stores(case: str) -> None:
    shape, layers = {**NETS, **GROUPED}[case]
    net = Unsigned(*shape)
    expect_same(unsized(net.finish(net.pair(layers(net), OUT)), 2, 3))


@pytest.mark.every(3)
@pytest.mark.parametrize("case", ["convolution", "depthwise", *GROUPED])
def test_where_nothing_is_widened_such_weights_are_parts_and_still_in_integers(case: str) -> None:
    shape, layers = {**NETS, **GROUPED}[case]
    net = Unsigned(*shape)
    model = net.finish(net.pair(layers(net), OUT))
    for tag, made in ((VNNI, model), (VNNI, unsized(model, 2, 3)), (SDOT, model)):
        assert lower(import_model(prepare(made)), Target.from_tag(tag), OPTIONS).fallbacks == ()


@given(seed=st.integers(0, 1 << 30), largest=st.integers(128, 255))
def test_parts_add_up_to_the_weights_and_fit_a_signed_byte(seed: int, largest: int) -> None:
    machine = Machine.of(Target.from_tag(SDOT))
    weight = np.random.default_rng(seed).integers(-largest, largest + 1, (3, 8, 1, 1))
    weight[0, 0] = largest
    wide = to_int8_or_int16(machine, weight)
    assert wide is not None
    parts, times = split_into_parts(machine, wide, axis=1)
    assert parts.dtype == np.int8
    assert abs(parts.astype(int)).max() <= 127
    np.testing.assert_array_equal(sum(np.split(parts.astype(int), times, axis=1)), weight)
