"""Dilated 3x3 convolutions: as ONNX Runtime has them, by the phases of an image where that pays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.support.tiled import Shape, assert_same, compiled, kernels_of, model

APART, TOGETHER = "phases_apart", "phases_together"
TAG = "x86-64/v3"
"""What pays is asked for on one machine, not on whatever CPU tests run on."""


def dilated(image: Shape, filters: int = 32, **attributes: Any) -> Any:
    """Return a dilated convolution of `x`, with bias and activation."""
    rng = np.random.default_rng(5)
    channels = int(image[1])
    weights = {
        "w": (rng.standard_normal((filters, channels, 3, 3)) / channels).astype(np.float32),
        "b": rng.standard_normal(filters).astype(np.float32),
    }
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"], **attributes), helper.make_node("Relu", ["c"], ["y"])]
    return model(nodes, {"x": image}, weights)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("image", "dilations", "pads"),
    [
        ((1, 64, 32, 33), [2, 2], [2, 2, 2, 2]),
        (("batch", 40, 31, 30), [2, 3], [0, 1, 3, 4]),
        ((2, 48, "height", "width"), [2, 3], [2, 3, 2, 3]),
        (("batch", 32, "height", 40), [3, 1], [3, 1, 3, 1]),
    ],
)
def test_phases_of_an_image_are_convolved_as_images(image: Shape, dilations: list[int], pads: list[int]) -> None:
    source = dilated(image, dilations=dilations, pads=pads)
    given = [axis if isinstance(axis, int) else 40 for axis in image]
    names = [kernel.name for kernel in compiled(source, tag=TAG).profile(np.ones(given, np.float32), runs=1)]
    assert any(APART in name for name in names)
    assert any(TOGETHER in name for name in names)
    assert any("winograd" in name for name in names)
    sizes = [{"batch": n, "height": h, "width": w} for n, h, w in ((1, 40, 37), (3, 9, 10))]
    assert_same(source, sizes, terms=9 * int(image[1]))


def test_images_of_any_size_may_shrink_from_one_to_the_next() -> None:
    weight = np.random.default_rng(5).standard_normal((32, 32, 3, 3)).astype(np.float32) / 32
    nodes = [
        helper.make_node("Conv", [x, "w"], [y], dilations=[2, 1], pads=[1, 1, 1, 1])
        for x, y in (("x", "c"), ("a", "y"))
    ]
    nodes.insert(1, helper.make_node("LeakyRelu", ["c"], ["a"]))
    source = model(nodes, {"x": (1, 32, "height", 33)}, {"w": weight})
    assert_same(source, [{"height": 40}, {"height": 9}], terms=9 * 32, tag=TAG)


def test_an_image_of_few_pixels_for_each_phase_is_convolved_as_it_is() -> None:
    source = dilated((1, 64, 14, 14), dilations=[12, 12], pads=[12, 12, 12, 12])
    assert not any(APART in name for name in kernels_of(compiled(source, tag=TAG)))
    assert_same(source, [{}], terms=9 * 64)


@pytest.mark.parametrize(
    ("image", "filters", "attributes"),
    [
        ((1, 32, 20, 23), 32, {"dilations": [9, 12], "pads": [9, 12, 9, 12]}),
        ((2, 40, 17, 16), 24, {"dilations": [6, 7], "pads": [6, 3, 5, 7]}),
        ((1, 16, 30, 11), 16, {"dilations": [24, 36], "pads": [24, 36, 24, 36]}),
        ((1, 20, 33, 33), 48, {"dilations": [12, 12], "pads": [12, 12, 12, 12], "strides": [2, 2]}),
        ((1, 1200, 9, 9), 16, {"dilations": [5, 5], "pads": [5, 5, 5, 5]}),
    ],
)
def test_taps_that_lie_beside_the_image_are_left_out(image: Shape, filters: int, attributes: dict[str, Any]) -> None:
    from forge_pipeline.codegen.float32.conv.geometry import Geometry
    from forge_pipeline.codegen.float32.conv.plan import channel_parts, choose_plan
    from forge_pipeline.codegen.tir.machine import Machine
    from forge_pipeline.target import Target

    source = dilated(image, filters, **attributes)
    machine = Machine.of(Target.from_tag(TAG))
    geometry = Geometry(
        channels=int(image[1]), filters=filters, groups=1, size=(int(image[2]), int(image[3])), kernel=(3, 3),
        strides=tuple(attributes.get("strides", (1, 1))), padding=tuple(attributes["pads"]),
        dilation=tuple(attributes["dilations"]),
    )  # fmt: skip
    assert choose_plan(machine, geometry).skips
    kernels = compiled(source, tag=TAG).profile(np.ones([int(axis) for axis in image], np.float32), runs=1)
    parts = len(channel_parts(machine, geometry))
    assert (
        sum(kernel.calls for kernel in kernels if "conv2d" in kernel.name)
        == parts
        == (1 if geometry.channels < 1000 else 6)
    )
    assert_same(source, [{}], terms=9 * int(image[1]), tag=TAG)


def test_an_image_of_any_size_with_weights_that_are_summed_up_in_parts() -> None:
    source = dilated((1, 1200, "height", "width"), 16, dilations=[1, 1], strides=[2, 2], pads=[1, 1, 1, 1])
    assert_same(source, [{"height": h, "width": w} for h, w in ((3, 4), (7, 7))], terms=9 * 1200, tag=TAG)


def test_taps_are_left_out_of_images_of_any_size() -> None:
    source = dilated((1, 20, "height", "width"), 24, dilations=[6, 9], pads=[6, 9, 6, 9], strides=[2, 1])
    sizes = [{"height": h, "width": w} for h, w in ((1, 1), (5, 30), (13, 10), (40, 37))]
    assert_same(source, sizes, terms=9 * 20)
    assert_same(source, sizes, terms=9 * 20, tag=TAG)
