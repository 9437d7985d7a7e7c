"""Chosen pixels and copies: of extents known and open, in one kernel for all axes, and bit by bit what they were."""

from __future__ import annotations

import numpy as np
import pytest

from forge_pipeline.codegen.onnx_import.resize import Choice
from forge_pipeline.codegen.onnx_import.resize_table import Axis, Interpolation, taps
from forge_pipeline.runtime.bundle import Library
from forge_runtime.engine import Engine
from tests.support.control_flow import compare, model_of

HALF, FLOOR = "", 'coordinate_transformation_mode = "asymmetric", nearest_mode = "floor", '
WAYS = (
    ("[1, 3, h, w]", (2.0, 2.0), FLOOR, "float"),
    ("[1, 3, 7, 9]", (2.0, 3.0), HALF, "float"),
    ("[2, 3, h, w]", (5.0, 3.0), HALF, "uint8"),
    ("[1, 3, 7, w]", (1.7, 2.0), HALF, "float"),
    ("[1, 3, h, 9]", (2.0, 0.7), FLOOR, "int32"),
    ("[n, 3, w]", (4.0,), HALF, "float"),
    ("[2, 3, 4, h, w]", (2.0, 3.0, 2.0), HALF, "float"),
)
"""Images, factors, places of pixels, and types."""


def samples(shape: str, kind: str) -> list[dict[str, np.ndarray]]:
    random, found = np.random.default_rng(len(shape)), []
    for n, h, w in ((1, 6, 16), (2, 5, 7), (1, 1, 1)):
        extents = [{"n": n, "h": h, "w": w}.get(item) or int(item) for item in shape.strip("[]").split(", ")]
        found.append({"x": random.integers(0, 200, extents).astype(kind)})
    return found


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def kernels(library: Library, x: np.ndarray) -> list[str]:
    found = Engine(library.to_bytes(), threads=1).profile(x, runs=1)
    return [kernel.name for kernel in found if kernel.name != "shape_func"]


@pytest.mark.parametrize(("shape", "factors", "places", "kind"), WAYS)
def test_one_kernel_chooses_pixels_along_all_axes(
    shape: str, factors: tuple[float, ...], places: str, kind: str
) -> None:
    given = samples(shape, "float32" if kind == "float" else kind)
    scales = ", ".join(map(str, (1.0, 1.0, *factors)))
    model = model_of(f"""g ({kind}{shape} x) => ({kind}[{", ".join("abcde"[: len(factors) + 2])}] y)
        <float[{len(factors) + 2}] s = {{{scales}}}> {{ y = Resize <{places}mode = "nearest"> (x, , s) }}""")
    library = compare(model, given, tolerance=0.0)
    assert len(kernels(library, *given[0].values())) == 1


def test_an_image_between_convolutions_is_doubled_in_blocks() -> None:
    model = model_of("""g (float[1, 16, h, w] x) => (float[1, 16, a, b] y) <float[4] s = {1.0, 1.0, 2.0, 2.0}> {
        c = AveragePool <kernel_shape = [1, 1]> (x)
        f = Constant <value_floats = [0.5]> () one = Constant <value_ints = [16, 16, 1, 1]> ()
        k = Expand (f, one) d = Conv (c, k)
        r = Resize <mode = "nearest"> (d, , s) q = Relu (r) y = Conv (q, k) }""")
    compare(model, samples("[1, 16, h, w]", "float32"))


def test_sizes_that_are_twice_the_images_are_a_factor() -> None:
    model = model_of("""g (float[1, 2, h, w] x) => (float[1, 2, a, b] y) <int64[4] two = {1, 1, 2, 2}> {
        s = Shape (x) z = Mul (s, two) y = Resize <mode = "nearest"> (x, , , z) }""")
    library = compare(model, samples("[1, 2, h, w]", "float32"), tolerance=0.0)
    assert kernels(library, np.ones((1, 2, 4, 4), "f")) == ["spread"]


@pytest.mark.parametrize("way", ["half_pixel", "pytorch_half_pixel", "asymmetric", "half_pixel_symmetric"])
def test_a_whole_factor_is_one_for_axes_of_any_length(way: str) -> None:
    for times in (2, 7):
        for rounding in ("floor", "round_prefer_floor", "round_prefer_ceil"):
            attributes = {"mode": "nearest", "coordinate_transformation_mode": way, "nearest_mode": rounding}
            rule, scale = Interpolation.of(attributes, 19), np.float32(times)
            found = Choice(position=2, scale=scale, rule=rule, output=None).times()
            size = (1 << 21) // times
            table = taps(Axis(size=size, output=size * times, scale=scale), rule).first
            assert (found == times) == np.array_equal(table, np.arange(size * times) // times)


@pytest.mark.parametrize(
    ("shape", "repeats"),
    [("[n, h, 3, w]", "2, 1, 3, 2"), ("[3, w]", "1, 5"), ("[1, h, 4]", "3, 2, 1"), ("[w]", "4"), ("[1, 1]", "1, 1")],
)
def test_tiles_of_open_extents(shape: str, repeats: str) -> None:
    rank = len(repeats.split(", "))
    known = model_of(f"""g (float{shape} x) => (float[{", ".join("abcd"[:rank])}] y)
        <int64[{rank}] r = {{{repeats}}}> {{ y = Tile (x, r) }}""")
    compare(known, samples(shape, "float32"), tolerance=0.0)


def test_a_tile_of_as_many_times_as_another_is_long() -> None:
    model = model_of("""g (float[1, h, 3] x, float[n, 7] z) => (float[a, b, c] y) <int64[2] one = {1, 2}> {
        s = Shape <start = 0, end = 1> (z) r = Concat <axis = 0> (s, one) y = Tile (x, r) }""")
    given = [{"x": numbers(1, h, 3), "z": numbers(n, 7)} for h, n in ((4, 5), (1, 1))]
    compare(model, given, tolerance=0.0)
