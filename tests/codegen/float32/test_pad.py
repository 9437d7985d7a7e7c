"""Padded images stay in blocks: constants around them, and channels that a shortcut gets behind its own."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tests.support.sums import assert_same_sums
from tests.support.tiled import Shape, assert_same, compiled, kernels_of, model

SIZES = [{"n": n, "h": h, "w": w} for n, h, w in ((1, 6, 8), (2, 8, 6), (1, 2, 2))]


def shortcut(
    before: int, after: int, size: Shape, pads: tuple[int, ...] = (0, 0, 0, 0), value: float = 0
) -> onnx.ModelProto:
    """Return the shortcut of a network whose blocks widen: pooled, with zeros as the channels that it lacks."""
    rng = np.random.default_rng(3)
    top, left, bottom, right = pads
    edges = np.array([0, 0, top, left, 0, after - before, bottom, right], np.int64)
    weights = {
        "first": (rng.standard_normal((before, 3, 3, 3)) / 4).astype(np.float32),
        "second": (rng.standard_normal((after, before, 3, 3)) / 8).astype(np.float32),
        "edges": edges,
        "slopes": rng.standard_normal((after, 1, 1)).astype(np.float32),
        "value": np.array(value, np.float32),
    }
    around = [1 + 2 * top, 1 + 2 * left, 1 + 2 * bottom, 1 + 2 * right]
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Pad", ["pooled", "edges", "value"], ["padded"]),
        helper.make_node("Conv", ["b", "second"], ["c"], pads=around, strides=[2, 2]),
        helper.make_node("Add", ["c", "padded"], ["d"]),
        helper.make_node("PRelu", ["d", "slopes"], ["y"]),
    ]
    return model(nodes, {"x": size}, weights)


@pytest.mark.every(8)
@pytest.mark.parametrize("size", [(1, 3, 16, 12), ("n", 3, "h", "w")])
@pytest.mark.parametrize(("before", "after"), [(32, 64), (28, 32), (28, 42), (5, 40)])
def test_channels_that_a_shortcut_lacks(before: int, after: int, size: Shape) -> None:
    source = shortcut(before, after, size)
    assert_same(source, SIZES if "n" in size else [{}], terms=9 * before)
    if "n" not in size:
        names = kernels_of(compiled(source))
        assert [name for name in names if "pack" in name] == ["unpack"], "only the result leaves its blocks"


@pytest.mark.every(8)
@pytest.mark.parametrize("size", [(2, 3, 10, 12), ("n", 3, "h", "w")])
@pytest.mark.parametrize(("before", "after", "value"), [(32, 32, 0.5), (20, 24, -1.0), (16, 48, 2.0)])
def test_constants_around_an_image(before: int, after: int, value: float, size: Shape) -> None:
    source = shortcut(before, after, size, pads=(1, 2, 1, 0), value=value)
    assert_same(source, SIZES if "n" in size else [{}], terms=9 * before)


def test_infinity_around_an_image() -> None:
    source = shortcut(20, 20, (1, 3, 8, 8), pads=(1, 1, 1, 1), value=float("inf"))
    x = np.random.default_rng(4).standard_normal((1, 3, 8, 8)).astype(np.float32)
    (found,), (expected,) = (
        compiled(source)(x),
        onnxruntime.InferenceSession(source.SerializeToString()).run(None, {"x": x}),
    )
    assert np.isinf(expected).any()
    assert_same_sums(np.nan_to_num(found, posinf=0), np.nan_to_num(expected, posinf=0), terms=180)
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
