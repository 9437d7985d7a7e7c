"""Half precision on emulated ARM CPUs, against ONNX Runtime in float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.target import Target
from tests.support.emulated.aarch64 import QEMU
from tests.support.emulated.choice import emulated
from tests.support.half_net import HALVES, dense_net, image_net, ones_net

LIMIT = 2.0**-7
"""Of the largest value: a few roundings of eleven bits on the way."""
OTHERS = ("arm/cortex-a55", "arm/neoverse-v1")
LEAST = 1e-5
"""What float32 arithmetic would stay below."""

pytestmark = pytest.mark.skipif(QEMU is None, reason="qemu-aarch64 is not installed: apt-get install qemu-user")


def run(model: onnx.ModelProto, tag: str, x: np.ndarray, **options: Any) -> list[np.ndarray]:
    target = Target.from_tag(tag)
    library = build(model, target, replace(HALVES, **options))
    assert library.metadata["compile"]["fallbacks"] == []
    return emulated(target).run(library.to_bytes(), ((x,), {})).outputs[0]


def errors(model: onnx.ModelProto, tag: str, *shape: int, **options: Any) -> list[float]:
    """Return the largest error of each output, of its largest value."""
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    found = run(model, tag, x, **options)
    assert [have.dtype for have in found] == [np.float32] * len(wanted)
    return [float(np.abs(have - want).max() / np.abs(want).max()) for have, want in zip(found, wanted, strict=True)]


@pytest.mark.parametrize("tag", ["raspberry-pi/5", *(pytest.param(tag, marks=pytest.mark.long) for tag in OTHERS)])
def test_images_are_as_near_as_half_precision_is(tag: str) -> None:
    found = errors(image_net(), tag, 1, 3, 28, 28)
    assert all(LEAST < error < LIMIT for error in found), found


def test_images_of_any_size_are_as_near() -> None:
    found = errors(image_net(("n", 3, "h", "w")), "raspberry-pi/5", 2, 3, 30, 22)
    assert all(LEAST < error < LIMIT for error in found), found


def test_images_with_channels_last_are_as_near() -> None:
    found = errors(image_net(), "raspberry-pi/5", 1, 3, 28, 28, channel_layout="last")
    assert all(LEAST < error < LIMIT for error in found), found


@pytest.mark.parametrize("rows", [(1,), (37,), ("rows",), (2, 9)])
def test_products_are_as_near(rows: tuple[int | str, ...]) -> None:
    shape = [5 if isinstance(extent, str) else extent for extent in rows]
    (error,) = errors(dense_net(rows), "raspberry-pi/5", *shape, 384)
    assert LEAST < error < LIMIT


@pytest.mark.parametrize("kind", ["one row", "rows", "open rows", "Conv"])
@pytest.mark.parametrize("steps", [4095, 4608])
def test_long_sums_lose_nothing_that_halves_hold(kind: str, steps: int) -> None:
    model = ones_net(kind, steps)
    dims = model.graph.input[0].type.tensor_type.shape.dim
    x = np.ones([dim.dim_value or 13 for dim in dims], np.float32)
    (found,) = run(model, "raspberry-pi/5", x)
    np.testing.assert_array_equal(found.astype(np.float16), np.float16(steps))  # as a half, or exactly
