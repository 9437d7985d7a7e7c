"""Images of any size that are resized linearly: as ONNX Runtime has them, in both layouts, by kernels of their own."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import NodeProto, helper

from tests.support.tiled import Shape, assert_same, model

SIZES = [
    {"n": n, "h": h, "w": w, "a": a, "b": b} for n, h, w, a, b in ((1, 3, 4, 7, 9), (2, 5, 1, 1, 6), (1, 9, 8, 4, 3))
]
WAYS = ("align_corners", "half_pixel", "asymmetric", "pytorch_half_pixel")


def resize(source: str, way: str) -> NodeProto:
    return helper.make_node(
        "Resize", [source, "", "", "s"], ["y"], mode="linear", coordinate_transformation_mode=way
    )  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_rows_and_columns_of_a_plain_image_are_mixed(way: str) -> None:
    inputs: dict[str, Shape] = {"x": ("n", 2, "h", "w"), "like": ("n", 2, "a", "b")}
    source = model([helper.make_node("Shape", ["like"], ["s"]), resize("x", way)], inputs)
    assert_same(source, SIZES, terms=4)


@pytest.mark.parametrize("way", WAYS[:2])
def test_what_a_convolution_made_is_mixed_in_its_layout(way: str) -> None:
    inputs: dict[str, Shape] = {"x": ("n", 3, "h", "w"), "like": ("n", 12, "a", "b")}
    weights = {"w": np.random.default_rng(0).standard_normal((12, 3, 1, 1)).astype(np.float32)}
    nodes = [
        helper.make_node("Shape", ["like"], ["s"]),
        helper.make_node("Conv", ["x", "w"], ["c"]),
        resize("c", way),
    ]
    assert_same(model(nodes, inputs, weights), SIZES, terms=40)


def test_an_image_that_is_doubled_has_pixels_between() -> None:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    source = model([node], {"x": ("n", 2, "h", "w")}, {"scales": np.float32([1, 1, 2, 2])})
    assert_same(source, [{key: size[key] for key in ("n", "h", "w")} for size in SIZES], terms=4)
