"""Every form of convolution in integers: any number of axes, transposed or not, strides, dilation, groups, padding.

ONNX Runtime without optimizations is the reference: with scales that are powers of two, and sums below 2^24, all that
it computes in float is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from forge_pipeline.codegen.build import build
from forge_pipeline.target import Target
from tests.support.emulated.choice import load
from tests.support.int8.compare import ELSEWHERE, HERE, OPTIONS, compiled, reference
from tests.support.int8.dynamic import measured
from tests.support.int8.net import IN, Net, exact_scales, unsized

STEPS = 400
"""Multiply-adds of a result for which sums of bytes are exact in float32."""

SMALL_FORMS = settings(
    max_examples=10, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A convolution: ``size`` of its image, channels by group, and the operator's attributes."""

    operator: str
    batch: int
    inputs: int
    outputs: int
    groups: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    attributes: dict[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the image."""
        return (self.batch, self.inputs * self.groups, *self.size)

    def layer(self, net: Net, x: str, *, is_float: bool = False, scales: Any = None) -> str:
        """Append it; each filter of a group has its own scale."""
        scales = exact_scales(self.outputs) / 2 if scales is None else scales
        if self.operator == "Conv":
            scales = np.tile(scales, self.groups)
            weight = net.weight((self.groups * self.outputs, self.inputs, *self.kernel), scales)
        else:
            weight = net.weight((self.groups * self.inputs, self.outputs, *self.kernel), scales, axis=1)
            scales = np.tile(scales, self.groups)
        if is_float:
            bias = net.tensor((net.random.integers(-500, 500, len(scales)) * 8).astype(np.float32))
        else:
            bias = net.bias(scales * IN[0])
        return net.node(self.operator, x, weight, bias, group=self.groups, **self.attributes)


@st.composite
def forms(draw: st.DrawFn) -> Form:
    """Draw any convolution whose sums are exact in float32."""
    axes = draw(st.integers(1, 3))
    operator = draw(st.sampled_from(["Conv", "ConvTranspose"]))

    def along(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=axes, max_size=axes))

    kernel, strides, dilations = along(1, 4 if axes < 3 else 3), along(1, 3), along(1, 2)
    pads = along(0, 2) + along(0, 2)
    groups = draw(st.sampled_from([1, 1, 2, 3, 8, 20]))
    most = max(1, STEPS // math.prod(kernel))
    inputs = 1 if groups > 3 else draw(st.integers(1, min(most, 40)))
    outputs = draw(st.integers(1, 2 if groups > 3 else 20))
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations, "pads": pads}
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    room = along(12, 20) if axes == 1 else along(3, 7)
    if operator == "ConvTranspose":
        attributes["output_padding"] = [draw(st.integers(0, stride - 1)) for stride in strides]
        size = [a + b + c for a, b, c in zip(room, pads[:axes], pads[axes:], strict=True)]
    else:
        size = [a + b for a, b in zip(room, reach, strict=True)]
    return Form(
        operator=operator, batch=draw(st.integers(1, 2)), inputs=inputs, outputs=outputs, groups=groups,
        size=tuple(size), kernel=tuple(kernel), attributes=attributes,
    )  # fmt: skip


ENDS = ("stored", "positive", "float")


def expect_same(form: Form, tag: str = HERE, end: str = "stored", **options: Any) -> bool:
    """Compare results: stored with about the scale that they have, behind a Relu or not, or read in float.

    Return whether there is more than one result to tell apart.
    """
    net = Net(*form.shape)
    y = form.layer(net, net.pair("x", IN), **options)
    steps = form.inputs * math.prod(form.kernel)
    spread = 2.0 ** round(math.log2(steps) / 2 + 5)
    if end == "positive":
        y = net.pair(net.node("Relu", y), (spread, 0))
    model = net.finish(net.pair(y, (spread, 121)) if end == "stored" else y)
    x = (net.random.standard_normal(net.shape) * 40).astype(np.float32)
    (found,), (wanted,) = compiled(model, tag)(x), reference(model, x, optimized=False)
    np.testing.assert_array_equal(found, wanted)
    return len(np.unique(wanted)) > 1


@SMALL_FORMS
@given(form=forms(), end=st.sampled_from(ENDS), is_float=st.booleans())
def test_every_form_of_convolution_is_computed_in_integers_and_stores_what_onnx_runtime_stores(
    form: Form, end: str, is_float: bool
) -> None:
    assume(expect_same(form, end=end, is_float=is_float))


@pytest.mark.long
@settings(SMALL_FORMS, max_examples=400)
@given(form=forms(), end=st.sampled_from(ENDS), is_float=st.booleans())
def test_many_forms_of_convolution_store_what_onnx_runtime_stores(form: Form, end: str, is_float: bool) -> None:
    assume(expect_same(form, end=end, is_float=is_float))


def form(operator: str, shape: tuple[int, ...], kernel: tuple[int, ...], groups: int = 1, **attributes: Any) -> Form:
    """Return a form from the shapes that ONNX has."""
    first, second, *taps = kernel
    inputs, outputs = (second, first // groups) if operator == "Conv" else (first // groups, second)
    return Form(
        operator=operator, batch=shape[0], inputs=inputs, outputs=outputs, groups=groups, size=shape[2:],
        kernel=tuple(taps), attributes=attributes,
    )  # fmt: skip


DECODER = form("ConvTranspose", (1, 16, 6, 7), (16, 24, 4, 4), strides=[2, 2], pads=[1] * 4)
FORMS = {
    "the phases of a decoder": DECODER,
    "phases without taps": form("ConvTranspose", (1, 8, 6, 5), (8, 9, 1, 1), strides=[2, 3]),
    "a transposed filter for each channel": form("ConvTranspose", (1, 20, 6, 6), (20, 1, 3, 3), 20, strides=[2, 2]),
    "a volume": form("Conv", (1, 16, 5, 8, 9), (24, 16, 3, 3, 3), pads=[1] * 6),
    "a volume of one channel": form("Conv", (1, 1, 6, 12, 12), (16, 1, 3, 5, 5), strides=[1, 2, 2]),
    "a filter for each channel of a volume": form("Conv", (1, 16, 5, 6, 6), (16, 1, 3, 3, 3), 16, pads=[1] * 6),
    "a dilated filter for each channel": form(
        "Conv", (1, 20, 9, 23), (20, 1, 2, 3), 20, strides=[1, 2], dilations=[2, 3], pads=[0, 3, 1, 2]
    ),
    "channels multiplied": form("Conv", (1, 12, 7, 8), (36, 1, 3, 3), 12, pads=[1] * 4),
}  # fmt: skip


@pytest.mark.every(10)
@pytest.mark.parametrize("tag", dict.fromkeys([HERE, "x86-64/v2"]))
@pytest.mark.parametrize("name", FORMS)
def test_forms_of_several_kernels_are_in_integers_whatever_the_instructions(name: str, tag: str) -> None:
    assert expect_same(FORMS[name], tag)


@pytest.mark.every(8)
@pytest.mark.parametrize("tag", ELSEWHERE)
def test_transposed_kernels_and_volumes_are_built_with_the_instructions_of_every_target(tag: str) -> None:
    from forge_pipeline.codegen.lowering import lower
    from forge_pipeline.codegen.onnx_import.importer import import_model, prepare

    for name in ("the phases of a decoder", "a volume"):
        net = Net(*FORMS[name].shape)
        model = net.finish(net.pair(FORMS[name].layer(net, net.pair("x", IN)), (1024.0, 100)))
        lowered = lower(import_model(prepare(model)), Target.from_tag(tag), OPTIONS)
        assert ELSEWHERE[tag] in lowered.module.script(show_meta=False)
        assert lowered.fallbacks == ()


@pytest.mark.long
def test_a_chain_over_two_three_and_one_axes_is_moved_in_bytes() -> None:
    net = Net(1, 12, 8, 9)
    y = form("ConvTranspose", (1, 12, 8, 9), (12, 20, 3, 3), strides=[2, 2]).layer(net, net.pair("x", IN))
    y = net.node("Reshape", net.pair(y, (2.0**9, 99)), net.tensor(np.array([1, 20, 1, 17, 19])))
    for power, inputs in ((18, 20), (27, 24)):
        weight = net.weight((24, inputs, 1, 3, 3), exact_scales(24))
        y = net.pair(net.node("Conv", y, weight, pads=[0, 1, 1, 0, 1, 1]), (2.0**power, 130))
    y = deep = net.node("Reshape", y, net.tensor(np.array([1, 24, 17 * 19])))
    for power, kernel in ((35, 5), (43, 3)):
        y = net.pair(net.node("Conv", y, net.weight((24, 24, kernel), exact_scales(24))), (2.0**power, 120))
    model = net.finish(y, deep)
    values = (net.random.standard_normal(net.shape) * 40).astype(np.float32)
    for found, wanted in zip(compiled(model)(values), reference(model, values, optimized=False), strict=True):
        assert len(np.unique(wanted)) > 100
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ["the phases of a decoder", "a volume", "channels multiplied"])
def test_the_batch_of_every_form_may_be_symbolic(name: str) -> None:
    net = Net(*FORMS[name].shape)
    model = net.finish(net.pair(FORMS[name].layer(net, net.pair("x", IN)), (1024.0, 100)))
    engine = compiled(unsized(model, 0))
    for batch in (1, 3):
        x = (net.random.standard_normal((batch, *net.shape[1:])) * 40).astype(np.float32)
        np.testing.assert_array_equal(engine(x)[0], reference(unsized(model, 0), x, optimized=False)[0])


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ["the phases of a decoder", "a volume", "a transposed filter for each channel"])
def test_forms_of_measured_bytes_are_convolutions_of_integers(name: str) -> None:
    net = Net(*FORMS[name].shape)
    x = measured(net, "x")
    made = FORMS[name]
    y = made.layer(net, x, is_float=True, scales=(net.random.random(made.outputs) / 100 + 0.001).astype(np.float32))
    model = net.finish(x, net.node("Relu", y))
    engine = compiled(model)
    for values in (net.random.standard_normal(net.shape) * 3 + 1, np.full(net.shape, -2.0)):
        feed = values.astype(np.float32)
        (bytes_, found), (same, wanted) = engine(feed), reference(model, feed, optimized=False)
        np.testing.assert_array_equal(bytes_, same)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6 * np.abs(wanted).max())


def test_weights_whose_scales_differ_within_a_filter_stay_in_float() -> None:
    net = Net(1, 8, 5, 5)
    weight = net.weight((8, 12, 3, 3), exact_scales(8), axis=0)
    y = net.pair(net.node("ConvTranspose", net.pair("x", IN), weight, strides=[2, 2]), (256.0, 100))
    model = net.finish(y)
    library = build(model, Target.from_tag(HERE), OPTIONS)
    assert library.metadata["compile"]["fallbacks"]
    x = (net.random.standard_normal(net.shape) * 40).astype(np.float32)
    found = load(library.to_bytes(), Target.from_tag(HERE))(x)[0]
    np.testing.assert_array_equal(found, reference(model, x, optimized=False)[0])
