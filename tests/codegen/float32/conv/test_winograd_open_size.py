"""Winograd's filtering of images of any size: as ONNX Runtime convolves, whatever the last group of tiles holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.float32.conv.winograd.fixed_size import TOLERANCES
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.tiled import TILED, Shape, model

SIZES = ((1, 1), (4, 4), (3, 9), (31, 33), (64, 40))
"""One pixel, one tile, edges that are no tile's, and more tiles than a group has."""


def _source(image: Shape, filters: int, *more: onnx.NodeProto, **attributes: Any) -> onnx.ModelProto:
    rng, channels = np.random.default_rng(5), int(image[1])
    weights = {
        "w": rng.standard_normal((filters, channels, 3, 3)).astype(np.float32),
        "b": rng.standard_normal(filters).astype(np.float32),
    }
    conv = helper.make_node("Conv", ["x", "w", "b"], ["c"], **attributes)
    return model([conv, *(more or (helper.make_node("Relu", ["c"], ["y"]),))], {"x": image}, weights)


def _compare(
    source: onnx.ModelProto, sizes: list[tuple[int, ...]], *, tag: str = "host", threads: int = 2,
    kernel: str = "open_winograd",
) -> None:  # fmt: skip
    library = build(source, Target.from_tag(tag), TILED)
    assert library.metadata["compile"]["fallbacks"] == []
    engine, session = (
        Engine(library.to_bytes(), threads=threads),
        onnxruntime.InferenceSession(source.SerializeToString()),
    )
    rng = np.random.default_rng(6)
    for size in sizes:
        image = rng.standard_normal(size).astype(np.float32)
        (found,), (expected,) = engine(image), session.run(None, {"x": image})
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= TOLERANCES[np.dtype(np.float32)] * np.abs(expected).max(), size
    names = [kernel.name for kernel in engine.profile(image, runs=1)]
    assert any(kernel in name for name in names), names


@pytest.mark.every(8)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("channels", "filters"), [(64, 64), (40, 128), (70, 20)])
def test_images_of_any_size(channels: int, filters: int, threads: int) -> None:
    source = _source(("batch", channels, "height", "width"), filters, pads=[1, 1, 1, 1])
    _compare(source, [(batch, channels, *size) for batch in (1, 2) for size in SIZES], threads=threads)


@pytest.mark.every(2)
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [2, 1, 0, 1], [2, 2, 2, 2]])
def test_any_padding(pads: list[int]) -> None:
    source = _source((1, 64, "height", "width"), 64, pads=pads)
    _compare(source, [(1, 64, *size) for size in SIZES if min(size) > 2])


@pytest.mark.every(2)
@pytest.mark.parametrize("image", [(1, 64, 24, "width"), (1, 64, "height", 17)])
def test_one_open_extent(image: Shape) -> None:
    source = _source(image, 64, pads=[1, 1, 1, 1])
    known = [extent if isinstance(extent, int) else None for extent in image[2:]]
    _compare(source, [(1, 64, *(k or s for k, s in zip(known, size, strict=True))) for size in SIZES])


def test_what_follows_is_computed_where_a_tile_is_stored() -> None:
    more = [
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Mul", ["c", "s"], ["m"]),
        helper.make_node("Add", ["m", "x"], ["y"]),
    ]
    source = _source(("batch", 64, "height", "width"), 64, *more, pads=[1, 1, 1, 1])
    _compare(source, [(2, 64, *size) for size in SIZES])


def test_sizes_that_are_computed_from_others() -> None:
    pool = helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    second = helper.make_node("Conv", ["p", "w"], ["y"], pads=[1, 1, 1, 1])
    source = _source(("batch", 64, "height", "width"), 64, pool, second, pads=[1, 1, 1, 1])
    _compare(source, [(1, 64, *size) for size in SIZES])


@pytest.mark.every(2)
@pytest.mark.parametrize("tag", ["x86-64/v2", "x86-64/v3"])
def test_narrower_vectors(tag: str) -> None:
    source = _source(("batch", 48, "height", "width"), 32, pads=[1, 1, 1, 1])
    _compare(source, [(1, 48, *size) for size in SIZES], tag=tag)


@pytest.mark.every(2)
@pytest.mark.parametrize(("channels", "size"), [(16, (222, 130)), (24, (90, 75))])
def test_a_large_image_whose_rows_are_no_whole_tiles_goes_by_groups(channels: int, size: tuple[int, int]) -> None:
    source = _source((1, channels, *size), 16, pads=[1, 1, 1, 1])
    _compare(source, [(1, channels, *size)], tag="x86-64/v3", kernel="winograd_groups")


def test_products_of_a_row_whose_last_tile_is_smaller_have_no_tests(tmp_path: Path) -> None:
    source = _source((1, 32, 296, 296), 32, pads=[1, 1, 1, 1])
    build(source, Target.from_tag("intel/sapphire-rapids"), TILED, dump=tmp_path)
    kernel = next(tmp_path.glob("*-rewrite.txt")).read_text()
    blocks = [block for block in kernel.split("T.sblock(") if block.startswith('"products')]
    extents = {extent for block in kernel.split('T.sblock("products_update")')[:-1] for extent in _unrolled(block)}
    assert len(extents) == 2, extents
    assert blocks and not [block for block in blocks if "T.where(" in block]


def _unrolled(text: str) -> list[str]:
    """Return how many results the loops have that are unrolled right before the end of ``text``."""
    return [line.split("T.int64(")[1].split(")")[0] for line in text.splitlines()[-4:] if "T.unroll(" in line][:1]
