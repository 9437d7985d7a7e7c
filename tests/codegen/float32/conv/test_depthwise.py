"""Depthwise convolutions of any size and edge: as ONNX Runtime has them, and no padded copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.support.tiled import assert_same, compiled, kernels_of, model

SAME = [1, 1, 1, 1]
CASES: dict[str, tuple[tuple[Any, ...], tuple[int, int], dict[str, Any]]] = {
    "tiles of all kinds": ((1, 24, 30, 41), (3, 3), {"pads": SAME}),
    "a last tile of one pixel": ((2, 16, 9, 17), (3, 3), {"pads": SAME}),
    "narrower than a tile": ((1, 40, 7, 3), (5, 5), {"pads": [2] * 4}),
    "every row at an edge": ((1, 16, 3, 20), (5, 5), {"pads": [2] * 4}),
    "smaller than its window": ((1, 16, 2, 2), (7, 7), {"pads": [3] * 4}),
    "strides": ((1, 16, 29, 31), (5, 5), {"pads": [2] * 4, "strides": [2, 2]}),
    "lopsided, as TensorFlow pads": ((1, 16, 28, 28), (3, 3), {"pads": [0, 0, 1, 1], "strides": [2, 2]}),
    "dilated": ((1, 16, 25, 26), (3, 3), {"pads": [4, 5, 4, 5], "dilations": [4, 5]}),
    "taps that reach over everything": ((1, 16, 6, 9), (3, 3), {"pads": [12] * 4, "dilations": [12, 12]}),
    "strides and dilation": ((1, 16, 23, 27), (3, 5), {"pads": [2, 6, 3, 5], "strides": [3, 2], "dilations": [2, 3]}),
    "a window of many taps": ((1, 16, 20, 33), (13, 13), {"pads": [6] * 4}),
    "padding of columns alone": ((1, 16, 8, 22), (1, 9), {"pads": [0, 4, 0, 4]}),
    "padding of rows alone": ((1, 16, 22, 8), (9, 1), {"pads": [4, 0, 4, 0]}),
    "one column": ((1, 16, 50, 1), (5, 1), {"pads": [2, 0, 2, 0]}),
    "channels that fill no vector": ((3, 21, 12, 11), (3, 3), {"pads": SAME}),
    "a symbolic batch": (("batch", 16, 13, 19), (3, 3), {"pads": SAME}),
    "rows that are shared out": ((1, 8, 96, 64), (3, 3), {"pads": SAME}),
}


SIZES = (1, 2, 5, 8, 9, 10, 16, 17, 33, 40)
"""Less than a tile, one with edges at both ends, and such that the last one is moved back or not."""


def network(image: tuple[Any, ...], kernel: tuple[int, int], attributes: dict[str, Any]) -> onnx.ModelProto:
    channels, random = image[1], np.random.default_rng(3)
    weights = {
        "w": random.standard_normal((channels, 1, *kernel)).astype(np.float32),
        "b": random.standard_normal(channels).astype(np.float32),
        "scale": random.standard_normal((channels, 1, 1)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], group=channels, **attributes),
        helper.make_node("HardSwish", ["c"], ["d"]),
        helper.make_node("Mul", ["d", "scale"], ["y"]),
    ]
    return model(nodes, {"x": image}, weights)


@pytest.mark.every(10)
@pytest.mark.parametrize("case", CASES)
def test_edges(case: str) -> None:
    image, kernel, attributes = CASES[case]
    source = network(image, kernel, attributes)
    assert_same(source, [{"batch": batch} for batch in (1, 3)], terms=kernel[0] * kernel[1])
    assert any("depthwise" in name for name in kernels_of(compiled(source)))


@pytest.mark.every(10)
@pytest.mark.parametrize("case", CASES)
def test_edges_of_open_images(case: str) -> None:
    image, kernel, attributes = CASES[case]
    top, left, bottom, right = attributes["pads"]
    reach = [dilation * (taps - 1) for dilation, taps in zip(attributes.get("dilations", (1, 1)), kernel, strict=True)]
    sizes = [
        {"batch": 1, "height": height, "width": width}
        for height in (*SIZES[::3], image[2])
        for width in (*SIZES, image[3])
        if height + top + bottom > reach[0] and width + left + right > reach[1]
    ]
    source = network((*image[:2], "height", "width"), kernel, attributes)
    assert_same(source, sizes, terms=kernel[0] * kernel[1])


def test_an_open_image_is_read_in_place() -> None:
    kernels = compiled(network((1, 16, "height", "width"), (3, 3), {"pads": SAME}))
    assert not any("pad" in name for name in kernels_of(kernels))
