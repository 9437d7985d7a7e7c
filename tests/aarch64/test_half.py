"""Half precision on emulated ARM CPUs, against ONNX Runtime in float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.target import Target
from tests.support.emulated.aarch64 import QEMU
from tests.support.emulated.choice import emulated
from tests.support.half_net import HALVES, attention_net, dense_net, image_net, ones_net

LIMIT = 2.0**-7
"""Of the largest value: a few roundings of eleven bits on the way."""
SERVER = "arm/neoverse-v1"
OTHERS = ("arm/cortex-a55", SERVER)
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


@pytest.mark.parametrize(
    "kind", ["rows", "open rows", "image", pytest.param("image of any size", marks=pytest.mark.long)]
)
def test_pairs_of_bfloat16_are_as_near_as_it_is(kind: str, tmp_path: Path) -> None:
    model, shape = {
        "rows": (dense_net((37,)), (37, 384)),
        "open rows": (dense_net(("rows",)), (21, 384)),
        "image": (image_net(), (1, 3, 28, 28)),
        "image of any size": (image_net(("n", 3, "h", "w")), (2, 3, 30, 22)),
    }[kind]
    found = errors(model, SERVER, *shape, float_arithmetic="bfloat16")
    assert all(LEAST < error < LIMIT for error in found), found
    build(model, Target.from_tag(SERVER), replace(HALVES, float_arithmetic="bfloat16"), dump=tmp_path)
    assert "bfdot" in next(tmp_path.glob("*-code.txt")).read_text()


def test_attention_in_pairs_of_bfloat16_is_as_near() -> None:
    model = attention_net({"q": (2, "n", 16), "k": (2, 16, "m"), "v": (2, "m", 8), "mask": (1, 1, "m")})
    random = np.random.default_rng(1)
    shapes = {"q": (2, 21, 16), "k": (2, 16, 45), "v": (2, 45, 8), "mask": (1, 1, 45)}
    feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    target = Target.from_tag(SERVER)
    library = build(model, target, replace(HALVES, float_arithmetic="bfloat16")).to_bytes()
    (found,) = emulated(target).run(library, (tuple(feeds.values()), {})).outputs[0]
    assert LEAST < np.abs(found - wanted).max() / np.abs(wanted).max() < LIMIT
