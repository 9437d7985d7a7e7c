"""Convolutions, pools and the like of bytes over images of any size: one library, bit for bit ONNX Runtime's results.

Sizes come one after the other, some of them smaller than a tile. The reference is ONNX Runtime without optimizations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.lowering import lower
from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
from forge_pipeline.errors import DataError
from forge_pipeline.target import Target
from tests.support.int8.any_size import SIZES, expect_same
from tests.support.int8.compare import HERE, OPTIONS, assembly_of, compiled, reference
from tests.support.int8.dynamic import layer, measured
from tests.support.int8.net import IN, OUT, Net, convolution, exact_scales, unsized
from tests.support.visits import visited

KINDS = {
    "pointwise": (24, 1, 1, {}),
    "padded": (32, 3, 1, {"pads": [1] * 4}),
    "strided": (8, 3, 1, {"pads": [1] * 4, "strides": [2, 2]}),
    "lopsided": (20, 4, 1, {"pads": [2, 3, 2, 2], "dilations": [1, 2]}),
    "grouped": (32, 3, 2, {"pads": [1] * 4}),
    "depthwise": (16, 3, 16, {"pads": [1] * 4}),
    "dilated depthwise": (16, 5, 16, {"pads": [4] * 4, "dilations": [2, 2]}),
    "strided depthwise": (16, 3, 16, {"pads": [1] * 4, "strides": [2, 2]}),
}
"""Filters, kernel, groups and attributes of convolutions of 16 channels."""


def kinds(names: Sequence[str] = tuple(KINDS), channels: int = 16) -> onnx.ModelProto:
    """Return a model with one convolution of each kind, stored, every other one clipped before, and two of the last
    kind that are read in float."""
    net = Net(1, channels, 8, 8)
    results = []
    for name in names:
        filters, kernel, groups, attributes = KINDS[name]
        y = convolution(net, channels, filters, kernel, groups, **attributes)
        results.append(net.pair(y if len(results) % 2 else net.node("Relu", y), OUT))
    results += [convolution(net, channels, filters, kernel, groups, **attributes) for _ in range(2)]
    results[-1] = net.node("Relu", results[-1])
    return unsized(net.finish(*results), 2, 3)


@pytest.mark.parametrize("tag", [HERE, pytest.param("x86-64/v2", marks=pytest.mark.long)])
def test_every_kind_of_convolution_stores_what_onnx_runtime_stores_at_every_size(tag: str) -> None:
    expect_same(kinds(), tag)


ROWS: dict[str, tuple[str, tuple[int, ...], int, dict[str, Any]]] = {
    "pointwise": ("Conv", (24, 16, 1), 1, {}),
    "padded": ("Conv", (32, 16, 9), 1, {"pads": [4, 4]}),
    "strided": ("Conv", (24, 16, 4), 1, {"pads": [1, 2], "strides": [2]}),
    "dilated": ("Conv", (16, 16, 3), 1, {"pads": [3, 3], "dilations": [3]}),
    "grouped": ("Conv", (32, 8, 3), 2, {"pads": [1, 1]}),
    "depthwise": ("Conv", (16, 1, 7), 16, {"pads": [3, 3]}),
    "transposed": ("ConvTranspose", (16, 24, 4), 1, {"pads": [1, 1], "strides": [2]}),
    "transposed, by five": ("ConvTranspose", (16, 8, 10), 1, {"pads": [2, 3], "strides": [5]}),
}
"""Operator, shape of the weights, groups and attributes of convolutions over one axis, of 16 channels."""


@pytest.mark.parametrize("batch", [False, True], ids=["one", "any batch"])
def test_convolutions_over_one_axis_of_any_length_are_in_bytes(batch: bool) -> None:
    """Of each, one that is stored, every other one clipped before, and one that is read in float."""
    net, results = Net(2, 16, 12), []
    for kind, shape, groups, attributes in ROWS.values():
        filters = shape[0] if kind == "Conv" else shape[1] * groups
        scale = exact_scales(filters)
        weight = net.weight(shape, scale, axis=0 if kind == "Conv" else 1)
        operands = net.pair("x", IN), weight, net.bias(scale * IN[0])
        stored, read = (net.node(kind, *operands, group=groups, **attributes) for _ in range(2))
        results += [net.pair(stored if len(results) % 4 else net.node("Relu", stored), OUT), read]
    model = unsized(net.finish(*results), *([0, 2] if batch else [2]))
    expect_all_in_bytes(model)
    expect_same(model, axes=(0 if batch else 2, 2))


def test_transposed_convolutions_of_images_of_any_size_are_in_bytes() -> None:
    net, scale = Net(1, 16, 8, 8), exact_scales(24)
    weight = net.weight((16, 24, 4, 4), scale, axis=1)
    y = net.node("ConvTranspose", net.pair("x", IN), weight, net.bias(scale * IN[0]), strides=[2, 2], pads=[1] * 4)
    model = unsized(net.finish(net.pair(net.node("Relu", y), OUT)), 2, 3)
    expect_all_in_bytes(model)
    expect_same(model)


def expect_all_in_bytes(model: onnx.ModelProto) -> None:
    fallbacks = build(model, Target.from_tag(HERE), OPTIONS).metadata["compile"]["fallbacks"]
    assert not [found for found in fallbacks if "conv" in found["operator"] or "depthwise" in found["operator"]]


def test_what_follows_a_convolution_of_any_size_is_in_bytes_too() -> None:
    net = Net(1, 16, 8, 8)
    twice = net.tensor(np.array([1, 1, 2, 2], np.float32))
    left = net.pair(net.node("Relu", convolution(net, 16, 16, 3, pads=[1] * 4, strides=[2, 2])), (64.0, 0))
    right = net.pair(convolution(net, 16, 16, 1, strides=[2, 2]), (32.0, 90))
    both = net.pair(net.node("Add", left, right), OUT)
    curve = net.pair(net.node("Mul", left, net.node("Sigmoid", left)), (32.0, 9))
    largest = net.node("MaxPool", both, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    inside = net.pair(net.node("AveragePool", both, kernel_shape=[3, 3], pads=[1] * 4), OUT)
    outside = net.node("AveragePool", both, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1)
    outside = net.pair(net.node("Relu", outside), OUT)
    floor = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    enlarged = net.pair(net.node("Resize", largest, "", twice, mode="nearest", **floor), OUT)
    joined = net.pair(net.node("Concat", both, curve, axis=1), OUT)
    mean = net.pair(net.node("GlobalAveragePool", both), (2.0**-3, 100))
    expect_same(unsized(net.finish(joined, largest, inside, outside, enlarged, mean), 2, 3))


@pytest.mark.long
def test_two_convolutions_of_any_size_that_both_wait_are_added() -> None:
    net = Net(1, 16, 8, 8)
    y = net.pair(net.node("Add", convolution(net, 16, 16, 1), convolution(net, 16, 16, 3, pads=[1] * 4)), OUT)
    expect_same(unsized(net.finish(y), 2, 3))


ROUNDED_UP: tuple[tuple[str, dict[str, Any]], ...] = (
    ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2]}),
    ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 3], "pads": [0, 1, 1, 0]}),
    ("MaxPool", {"kernel_shape": [2, 2], "dilations": [2, 1], "pads": [1, 0, 1, 1]}),
    ("AveragePool", {"kernel_shape": [3, 3], "strides": [2, 2]}),
    ("AveragePool", {"kernel_shape": [2, 3], "strides": [2, 3], "pads": [1, 1, 0, 1]}),
    ("AveragePool", {"kernel_shape": [3, 3], "strides": [2, 3], "pads": [1, 0, 1, 0], "count_include_pad": 1}),
)
"""Pools whose number of results is rounded up; some would start a window behind the image if it was only that."""


@pytest.mark.long
def test_pools_of_any_size_have_as_many_results_as_onnx_runtime_has_when_it_rounds_their_number_up() -> None:
    net = Net(1, 16, 8, 8)
    y = net.pair(convolution(net, 16, 16, 1), OUT)
    made = [net.node(operator, y, ceil_mode=1, **attributes) for operator, attributes in ROUNDED_UP]
    expect_same(unsized(net.finish(net.node("GlobalMaxPool", y), *(net.pair(x, OUT) for x in made)), 2, 3))


@pytest.mark.every(4)
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_windows_larger_than_an_image_of_any_size_are_refused_and_the_engine_goes_on(operator: str) -> None:
    net = Net(1, 16, 8, 8)
    y = net.pair(convolution(net, 16, 16, 1), OUT)
    model = unsized(net.finish(net.pair(net.node(operator, y, kernel_shape=[3, 3], strides=[2, 2]), OUT)), 2, 3)
    engine = compiled(model)
    for size in ((2, 9), (9, 2), (1, 1)):
        with pytest.raises(DataError, match=r"expected sizes that (go together|the model can compute with)"):
            engine(np.ones((1, 16, *size), np.float32))
    x = (net.random.standard_normal((1, 16, 9, 12)) * 40).astype(np.float32)
    np.testing.assert_array_equal(engine(x)[0], reference(model, x, optimized=False)[0])


@pytest.mark.long
def test_a_clipped_result_whose_extents_are_claimed_to_be_others_keeps_its_bounds() -> None:
    """Half of an extent, doubled, is that extent where it is even."""
    net = Net(1, 16, 8, 8)
    twice = net.tensor(np.array([1, 1, 2, 2], np.float32))
    half = net.node("MaxPool", net.pair("x", IN), kernel_shape=[2, 2], strides=[2, 2])
    floor = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    enlarged = net.node("Resize", half, "", twice, mode="nearest", **floor)
    model = unsized(net.finish(net.node("Add", enlarged, net.node("Relu", convolution(net, 16, 16, 1)))), 2, 3)
    engine = compiled(model)
    for size in ((4, 6), (18, 10)):
        x = (net.random.standard_normal((1, 16, *size)) * 40).astype(np.float32)
        np.testing.assert_array_equal(engine(x)[0], reference(model, x, optimized=False)[0])


@pytest.mark.parametrize("stride", [1, 2])
def test_a_small_image_of_many_channels_is_copied_whole_and_its_filters_are_shared(stride: int) -> None:
    net = Net(1, 512, 8, 8)
    y = net.pair(convolution(net, 512, 512, 3, pads=[1] * 4, strides=[stride] * 2), OUT)
    model = unsized(net.finish(y), 2, 3)
    expect_same(model)
    kernel = next(text for name, text in kernel_texts(model).items() if "conv2d" in name)
    assert [loop for loop in re.findall(r"for (\w+) in T.parallel", kernel) if "oc_block" in loop]


def test_an_image_of_few_channels_and_any_size_is_read_as_words() -> None:
    net = Net(1, 3, 8, 8)
    first = net.pair(convolution(net, 3, 16, 3, pads=[1] * 4, strides=[2, 2]), OUT)
    expect_same(unsized(net.finish(first, net.pair(convolution(net, 3, 24, 1), OUT)), 2, 3))


def test_an_image_of_any_size_with_channels_last_is_turned_by_the_convolution_that_reads_it() -> None:
    net, scale = Net(1, 8, 8, 3), exact_scales(16)
    image = net.node("Transpose", net.pair("x", IN), perm=[0, 3, 1, 2])
    y = net.node("Conv", image, net.weight((16, 3, 2, 2), scale), net.bias(scale * IN[0]), pads=[0, 0, 1, 1])
    expect_same(unsized(net.finish(net.pair(y, OUT)), 1, 2), axes=(1, 2))


ELSEWHERE = {
    "intel/sapphire-rapids": "vpdpbusd.512",
    "intel/alder-lake": "vpdpbusd.256",
    "x86-64/v4": "pmaddw.d.512",
    "arm/cortex-a76": "neon.sdot",
    "arm/generic": "neon.smull",
    "arm/neoverse-v1": "neon.usdot",
}


@pytest.mark.every(8)
@pytest.mark.parametrize("tag", ELSEWHERE)
def test_convolutions_of_any_size_are_built_with_the_instructions_of_every_target(tag: str) -> None:
    for name in ("pointwise", "padded", "depthwise"):
        lowered = lower(import_model(prepare(kinds([name]))), Target.from_tag(tag), OPTIONS)
        text = lowered.module.script(show_meta=False)
        assert ELSEWHERE[tag] in text
        assert lowered.fallbacks == ()
        assert text.count("T.match_buffer") >= 3  # of the instruction: its loop was tensorized


@pytest.mark.parametrize("tag", ["intel/sapphire-rapids", "x86-64/v3"])
def test_no_pixel_of_an_image_of_any_size_is_asked_for_being_inside(tag: str) -> None:
    lowered = lower(import_model(prepare(kinds(["padded", "depthwise"]))), Target.from_tag(tag), OPTIONS)
    assert "if_then_else" not in lowered.module.script(show_meta=False)


def kernel_texts(model: onnx.ModelProto) -> dict[str, str]:
    """Return the kernels that a model is lowered to here, by name."""
    functions = lower(import_model(prepare(model)), Target.from_tag(HERE), OPTIONS).module.functions_items()
    return {name.name_hint: function.script() for name, function in functions}


def test_every_pixel_that_is_read_in_place_is_in_a_tile_within_the_image_and_few_are_in_two() -> None:
    from tvm import tirx

    target = Target.from_tag("intel/sapphire-rapids")
    module = lower(import_model(prepare(kinds(["pointwise"]))), target, OPTIONS).module
    kernel = next(function for name, function in module.functions_items() if "conv2d" in name.name_hint)
    extents = [extent for extent in kernel.params[0].ty.shape if isinstance(extent, tirx.Var)]
    for size in ((1, 1), (1, 13), (2, 7), (3, 5), (73, 14), (103, 10)):  # less than a tile, one, more, and than a band
        seen: dict[str, list[int]] = {}
        for name, pixel in visited(kernel.body, dict(zip(extents, size, strict=True)), axis=3):
            seen.setdefault(name, []).append(pixel)
        pixels = size[0] * size[1]
        assert len(seen) >= 3  # sums begin, go on and are stored
        for places in seen.values():
            assert set(places) == set(range(pixels))
        assert min(len(places) for places in seen.values()) < 2 * (pixels + 32)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("tag", "multiply", "name"),
    [
        ("x86-64/v3", "pmaddwd", "padded"),
        ("intel/sapphire-rapids", "vpdpbusd", "padded"),
        ("intel/sapphire-rapids", "vpdpbusd", "pointwise"),
    ],
)
def test_sums_of_an_image_of_any_size_stay_in_registers(tag: str, multiply: str, name: str) -> None:
    assembly = assembly_of(kinds([name], channels=128), tag, "conv2d")
    loop = max(re.split(r"\n\.?\w+:|\tj\w+\t", assembly), key=lambda block: block.count(multiply))
    assert loop.count(multiply) >= 8
    assert not re.findall(r"\tv?paddd\t-?\d*\(%r|\tvmovdq\w+\t%[yz]mm\d+, .*\(", loop)


def test_measured_images_of_any_size_are_padded_with_their_zero_point() -> None:
    net = Net(1, 16, 8, 8)
    model = unsized(net.finish(layer(net, measured(net, "x"), "convolution")), 2, 3)
    engine = compiled(model)
    for height, width in SIZES[2:]:
        x = (net.random.standard_normal((1, 16, height, width)) * 3 + 1).astype(np.float32)
        wanted = reference(model, x, optimized=False)[0]
        np.testing.assert_allclose(engine(x)[0], wanted, rtol=1e-5, atol=2e-6 * np.abs(wanted).max())
