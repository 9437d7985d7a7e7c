"""Pixels that come from a few channels in turns, of known and of open sizes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.support.tiled import Shape, assert_same, model

SIZES = [{"h": h, "w": w} for h in (1, 3) for w in (1, 7, 16, 33)]


@pytest.mark.every(2)
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("image", [("h", "w"), (3, 33), (2, 64)], ids=str)
def test_a_shuffle_with_what_is_added_to_it_and_comes_after(mode: str, size: int, image: Shape) -> None:
    bias = np.arange(2, dtype=np.float32).reshape(1, 2, 1, 1)
    nodes = [
        helper.make_node("DepthToSpace", ["x"], ["s"], blocksize=size, mode=mode),
        helper.make_node("Add", ["s", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    source = model(nodes, {"x": (1, 2 * size * size, *image)}, {"b": bias})
    assert_same(source, SIZES if "h" in image else [{}], terms=2)


@pytest.mark.parametrize("channels", [2, 3, 4, 5])
@pytest.mark.parametrize("image", [("h", "w"), (3, 33)], ids=str)
def test_channels_last_of_a_few_channels(channels: int, image: Shape) -> None:
    source = model([helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 3, 1])], {"x": (1, channels, *image)})
    assert_same(source, SIZES if "h" in image else [{}], terms=2)
