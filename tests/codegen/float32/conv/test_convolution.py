"""Convolutions of every form and size: as ONNX Runtime has them, by scheduled kernels, fused with what follows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from forge_pipeline.codegen.build import build
from forge_pipeline.target import Target
from tests.support.tiled import TILED, Shape, assert_same, compiled, kernels_of, model

CONV, TRANSPOSED = "Conv", "ConvTranspose"


def convolution(
    operator: str, image: Shape, weight: tuple[int, ...], *more: onnx.NodeProto, result: str = "y", **attributes: Any
) -> onnx.ModelProto:
    """Return a convolution of `x` with bias, then ``more``."""
    rng = np.random.default_rng(2)
    filters = weight[0] if operator == CONV else weight[1] * attributes.get("group", 1)
    weights = {
        "w": rng.standard_normal(weight).astype(np.float32),
        "b": rng.standard_normal(filters).astype(np.float32),
    }
    node = helper.make_node(operator, ["x", "w", "b"], [result], **attributes)
    return model([node, *more], {"x": image}, weights)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("weight", "group"), [((20, 16, 3, 3), 1), ((16, 1, 5, 5), 16), ((12, 6, 3, 1), 2), ((5, 3, 2, 2), 1)]
)
def test_weights_that_are_computed_are_packed_where_the_model_runs(weight: tuple[int, ...], group: int) -> None:
    nodes = [helper.make_node("Tanh", ["z"], ["w"]), helper.make_node("Conv", ["x", "w"], ["y"], group=group)]
    source = model(nodes, {"x": (2, weight[1] * group, "height", 13), "z": weight}, {})
    assert_same(source, [{"height": 9}, {"height": 5}], terms=weight[1] * weight[2] * weight[3])


def test_groups_are_moved_apart_where_an_image_of_an_open_size_was_strided_before() -> None:
    rng, shapes = np.random.default_rng(4), {"v": (60, 8, 3, 3), "w": (60, 12, 3, 3)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["c"], strides=[2, 2]),
        helper.make_node("Conv", ["c", "w"], ["d"], strides=[2, 2], group=5),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    source = model(nodes, {"x": (1, 8, "height", "width")}, weights)
    assert_same(source, [{"height": 29, "width": 41}, {"height": 16, "width": 23}], terms=8 * 9 * 12 * 9)


@pytest.mark.parametrize("size", [(9, 11), ("height", "width")])
def test_an_odd_number_of_narrow_groups_is_filled_up_with_one_of_zeros(size: Shape) -> None:
    source = convolution(CONV, (1, 28, *size), (28, 4, 3, 3), group=7)
    assert "groups_apart" not in kernels_of(compiled(source))
    assert_same(source, [{"height": 9, "width": 11}, {"height": 4, "width": 20}], terms=36)


@pytest.mark.parametrize("batch", [2, "batch"])
def test_groups_of_one_pixel_that_fill_no_vectors_are_products(batch: int | str) -> None:
    """As in ShuffleNet: nothing is moved, and what follows goes on in groups."""
    random = np.random.default_rng(0)
    weights = {
        name: random.standard_normal(shape).astype(np.float32)
        for name, shape in (("w", (136, 34, 1, 1)), ("b", (136,)), ("v", (136, 34, 1, 1)), ("shared", (136, 7, 9)))
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], group=4),
        helper.make_node("LeakyRelu", ["c"], ["d"], alpha=0.25),
        helper.make_node("Conv", ["d", "v"], ["e"], group=4),
        helper.make_node("Add", ["e", "x"], ["f"]),
        helper.make_node("Add", ["f", "shared"], ["g"]),
        helper.make_node("Relu", ["g"], ["y"]),
    ]
    source = model(nodes, {"x": (batch, 136, 7, 9)}, weights)
    assert not any("groups" in kernel for kernel in kernels_of(compiled(source)))
    assert_same(source, [{"batch": 2}, {"batch": 1}], terms=34 * 34)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("operator", "weight", "attributes"),
    [
        (CONV, (20, 16, 5), {"pads": [2, 2]}),
        (CONV, (20, 16, 3, 1, 3), {"pads": [1, 0, 1, 1, 0, 1]}),
        (TRANSPOSED, (16, 10, 4), {"strides": [2], "group": 2}),
        (TRANSPOSED, (16, 20, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        (TRANSPOSED, (16, 5, 1, 2, 2), {"strides": [1, 2, 2]}),
    ],
)
def test_computed_weights_of_one_axis_three_and_transposed_run_by_the_same_kernels(
    operator: str, weight: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    nodes = [
        helper.make_node("Tanh", ["z"], ["w"]),
        helper.make_node(operator, ["x", "w"], ["c"], **attributes),
        helper.make_node("Mul", ["c", "f"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    ones = (1,) * (len(weight) - 2)
    filters = weight[0] if operator == CONV else weight[1] * attributes.get("group", 1)
    factors = {"f": np.linspace(1, 2, filters, dtype=np.float32).reshape(1, -1, *ones)}
    source = model(nodes, {"x": (2, 16, *[4] * (len(ones) - 1), "width"), "z": weight}, factors)
    assert_same(source, [{"width": 9}, {"width": 4}], terms=16 * int(np.prod(weight[2:])))


@pytest.mark.parametrize(
    ("weight", "attributes"),
    [
        ((24, 24, 2, 2), {"strides": [2, 2]}),
        ((24, 20, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        ((24, 1, 4, 4), {"strides": [2, 2], "pads": [1, 0, 0, 1], "group": 24}),
    ],
)
def test_transposed_over_images_of_any_size(weight: tuple[int, ...], attributes: dict[str, Any]) -> None:
    source = convolution(TRANSPOSED, (2, 24, "height", "width"), weight, **attributes)
    assert_same(
        source, [{"height": h, "width": w} for h, w in ((3, 5), (8, 2), (2, 17))], terms=24 * weight[2] * weight[3]
    )


@pytest.mark.every(6)
@pytest.mark.parametrize(
    ("operator", "weight", "attributes"),
    [
        (CONV, (40, 32, 3), {"pads": [1, 1]}),
        (CONV, (40, 16, 3), {"dilations": [4], "pads": [4, 4], "group": 2}),
        (CONV, (32, 1, 5), {"pads": [4, 0], "group": 32}),
        (CONV, (40, 32, 4), {"strides": [2], "pads": [1, 2]}),
        (TRANSPOSED, (32, 20, 8), {"strides": [4], "pads": [2, 2]}),
    ],
)
def test_over_one_axis_of_any_length(operator: str, weight: tuple[int, ...], attributes: dict[str, Any]) -> None:
    source = convolution(operator, (2, 32, "length"), weight, **attributes)
    assert_same(source, [{"length": length} for length in (4, 19, 64)], terms=weight[1] * weight[2])


@pytest.mark.every(2)
@pytest.mark.parametrize("length", [40, "length"])
def test_what_follows_one_over_one_axis_is_fused_and_nothing_moves_between_two(length: int | str) -> None:
    weights = {
        name: np.random.default_rng(4).standard_normal(shape).astype(np.float32)
        for name, shape in {"w": (32, 32, 3), "b": (32,), "v": (32, 32, 3), "c": (32,), "scale": (32, 1)}.items()
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["p"], pads=[1, 1]),
        helper.make_node("LeakyRelu", ["p"], ["q"]),
        helper.make_node("Conv", ["q", "v", "c"], ["r"], pads=[1, 1]),
        helper.make_node("Mul", ["r", "scale"], ["s"]),
        helper.make_node("Add", ["s", "q"], ["t"]),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    source = model(nodes, {"x": ("batch", 32, length)}, weights)
    assert_same(source, [{"batch": n, "length": size} for n, size in ((1, 7), (3, 40))], terms=400)
    names = [name for name in kernels_of(compiled(source)) if "shape_func" not in name]
    assert sum("conv2d" in name for name in names) == 2, names
    assert all(any(word in name for word in ("conv2d", "pack", "reshape")) for name in names), names
    assert sum("pack" in name for name in names) == 2, names


@pytest.mark.every(2)
@pytest.mark.parametrize(("image", "times"), [((1, 20, 9, 12), 3), ((2, 20, "height", "width"), 2)])
def test_several_filters_for_each_channel(image: Shape, times: int) -> None:
    source = convolution(CONV, image, (20 * times, 1, 3, 3), group=20, pads=[1, 1, 1, 1], strides=[1, 2])
    assert_same(source, [{"height": 7, "width": 5}, {"height": 4, "width": 12}], terms=9)
    assert any("depthwise" in name for name in kernels_of(compiled(source)))


@pytest.mark.every(2)
@pytest.mark.parametrize(("channels", "filters"), [(40, 18), (24, 32)])
def test_a_few_groups_that_fill_no_vectors(channels: int, filters: int) -> None:
    source = convolution(CONV, ("batch", 5 * channels, 6, 7), (5 * filters, channels, 3, 3), group=5, pads=[1, 1, 1, 1])
    assert_same(source, [{"batch": 1}, {"batch": 2}], terms=9 * channels)


@pytest.mark.parametrize("height", [50, "height"])
@pytest.mark.parametrize("group", [1, 32])
def test_an_image_of_one_column(height: int | str, group: int) -> None:
    source = convolution(CONV, (2, 32, height, 1), (32, 32 // group, 3, 1), group=group, pads=[1, 0, 1, 0])
    assert_same(source, [{"height": 50}, {"height": 9}], terms=3 * 32)


@pytest.mark.every(2)
@pytest.mark.parametrize("batch", [1, "batch"])
def test_what_scales_an_image_by_a_product_is_computed_once(batch: int | str) -> None:
    """A squeeze-and-excitation block."""
    rng = np.random.default_rng(5)
    shapes = {"w": (32, 1, 3, 3), "s": (8, 32, 1, 1), "e": (32, 8, 1, 1)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], group=32),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Conv", ["p", "s"], ["q"]),
        helper.make_node("Relu", ["q"], ["r"]),
        helper.make_node("Conv", ["r", "e"], ["t"]),
        helper.make_node("HardSigmoid", ["t"], ["g"]),
        helper.make_node("Mul", ["g", "c"], ["y"]),
    ]
    assert_same(model(nodes, {"x": (batch, 32, 6, 6)}, weights), [{"batch": 1}, {"batch": 3}], terms=300)


@pytest.mark.parametrize("tag", ["x86-64/v3", "x86-64/v4", "raspberry-pi/5"])
def test_a_small_image_of_an_open_size_has_work_for_each_of_four_threads(tag: str, tmp_path: Path) -> None:
    source = convolution(CONV, (1, 64, "height", "width"), (64, 64, 1, 1))
    build(source, Target.from_tag(tag), TILED, dump=tmp_path)
    (text,) = (path.read_text() for path in tmp_path.glob("*-schedule.txt"))
    (kernel,) = (part for part in text.split("@T.prim_func") if "def fused_conv2d" in part or "def conv2d" in part)
    (turns,) = re.findall(r"T\.parallel\((.+)\):", kernel)
    sizes = {"height": 40, "width": 40}
    assert eval(turns.replace("T.int64", ""), {}, sizes) >= 4
