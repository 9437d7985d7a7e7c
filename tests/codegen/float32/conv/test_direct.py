"""Direct convolution by itself: whatever tiles, row_blocks and stored vectors a plan has, the numbers are the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from forge_pipeline.codegen.float32.conv import direct
from forge_pipeline.codegen.float32.conv.dynamic_shape import stored_blocks
from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.float32.conv.plan import Plan, choose_plan, is_pointwise
from forge_pipeline.codegen.tir.machine import Machine, Tile, divisors
from forge_pipeline.target import Target
from tests.support.tiled import assert_same, model

LEVEL = "x86-64/v3"
MACHINE = Machine.of(Target.from_tag(LEVEL))


def convolved(plan: Plan, geometry: Geometry, image: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Compile one convolution by ``plan`` and run it on (channels / lanes, height, width, lanes)."""
    import tvm
    from tvm import s_tir, te

    from forge_pipeline.codegen.tiled import PASS_CONFIG

    unit = direct.channels_at_once(geometry.channels, MACHINE.lanes)
    packed = direct.pack_weight(weight, MACHINE.lanes, unit, oc_blocks=plan.oc_blocks)
    source, weights = te.placeholder((1, *image.shape)), te.placeholder(packed.shape)
    sch = s_tir.Schedule(te.create_prim_func([source, weights, direct.convolve(source, weights, geometry, plan)]))
    direct.schedule(sch, MACHINE)
    with tvm.transform.PassContext(config=PASS_CONFIG):
        kernel = tvm.compile(sch.mod, target=Target.from_tag(LEVEL).tvm())["main"]
    rows = -(-geometry.filters // MACHINE.lanes)
    result = tvm.runtime.tensor(np.full((1, rows, *geometry.output, MACHINE.lanes), np.nan, np.float32))
    kernel(*(tvm.runtime.tensor(np.ascontiguousarray(array)) for array in (image[None], packed)), result)
    blocked: np.ndarray = result.numpy()[0]
    return blocked.transpose(0, 3, 1, 2).reshape(-1, *geometry.output)[: geometry.filters]


def expected(geometry: Geometry, image: np.ndarray, weight: np.ndarray) -> np.ndarray:
    plain = image.transpose(0, 3, 1, 2).reshape(-1, *geometry.size)[: geometry.channels]
    top, left, bottom, right = geometry.padding
    padded = np.pad(plain, ((0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, geometry.kernel, axis=(1, 2))
    result: np.ndarray = np.einsum(
        "chwij,fcij->fhw", windows[:, :: geometry.strides[0], :: geometry.strides[1]], weight
    )
    return result


@settings(max_examples=8)
@given(draw=st.data(), height=st.integers(1, 9), width=st.integers(1, 9), rows=st.integers(1, 5))
def test_every_plan_computes_the_same_convolution(draw: st.DataObject, height: int, width: int, rows: int) -> None:
    kernel, stride = draw.draw(st.sampled_from([(1, 1), (1, 2), (3, 1), (3, 2)]))
    channels = draw.draw(st.sampled_from([16, 13, 12, 8, 5]))
    geometry = Geometry(
        channels=channels, filters=rows * 8, groups=1, size=(height, width), kernel=(kernel, kernel),
        strides=(stride, stride), padding=(kernel // 2,) * 4, dilation=(1, 1),
    )  # fmt: skip
    out_h, out_w = geometry.output
    along, across = (out_h * out_w, 1) if is_pointwise(geometry) else (out_h, out_w)
    row_blocks = draw.draw(st.sampled_from(divisors(along, along)))
    stored = rows + draw.draw(st.integers(0, 1))
    vectors = draw.draw(st.sampled_from(divisors(stored, 3)))
    pixels = draw.draw(st.integers(1, min(4, along // row_blocks if across == 1 else out_w)))
    tile = Tile(pixels=pixels, vectors=vectors, efficiency=1.0, tail=0)
    plan = Plan(tile=tile, row_blocks=row_blocks, oc_blocks=stored, cycles=0.0)
    random = np.random.default_rng(0)
    image = random.integers(-4, 5, (-(-channels // 8), height, width, 8)).astype(np.float32)
    weight = random.integers(-4, 5, (geometry.filters, channels, kernel, kernel)).astype(np.float32)
    if channels % 4 and channels > 8:  # summed up as if they were a multiple of four
        image[-1, :, :, channels % 8 :] = 0
    np.testing.assert_array_equal(convolved(plan, geometry, image, weight), expected(geometry, image, weight))


def test_no_tile_writes_over_the_end_of_its_row_block_where_another_thread_writes() -> None:
    """Four row blocks of 49 pixels in tiles of five failed in most runs when tiles were cut only at the image's end."""
    geometry = Geometry(
        channels=128, filters=64, groups=1, size=(14, 14), kernel=(1, 1), strides=(1, 1), padding=(0,) * 4,
        dilation=(1, 1),
    )  # fmt: skip
    plan = Plan(tile=Tile(pixels=5, vectors=2, efficiency=1.0, tail=4), row_blocks=4, oc_blocks=8, cycles=0.0)
    random = np.random.default_rng(0)
    image = random.integers(-4, 5, (16, 14, 14, 8)).astype(np.float32)
    weight = random.integers(-4, 5, (64, 128, 1, 1)).astype(np.float32)
    right = expected(geometry, image, weight)
    for _ in range(3):
        np.testing.assert_array_equal(convolved(plan, geometry, image, weight), right)


def test_a_row_block_is_copied_where_its_channels_share_places_of_the_cache() -> None:
    def plan(size: int, channels: int) -> Plan:
        geometry = Geometry(
            channels=channels, filters=64, groups=1, size=(size, size), kernel=(1, 1), strides=(1, 1),
            padding=(0, 0, 0, 0), dilation=(1, 1),
        )  # fmt: skip
        return choose_plan(MACHINE, geometry)

    assert plan(32, 512).copies
    assert not plan(31, 512).copies
    assert not plan(32, 16).copies
    random = np.random.default_rng(1)
    geometry = Geometry(
        channels=256, filters=24, groups=1, size=(32, 32), kernel=(1, 1), strides=(1, 1), padding=(0, 0, 0, 0),
        dilation=(1, 1),
    )  # fmt: skip
    image = random.integers(-4, 5, (32, 32, 32, 8)).astype(np.float32)
    weight = random.integers(-4, 5, (24, 256, 1, 1)).astype(np.float32)
    for row_blocks in (1, 4, 16):
        chosen = replace(choose_plan(MACHINE, geometry), row_blocks=row_blocks, copies=True)
        np.testing.assert_array_equal(convolved(chosen, geometry, image, weight), expected(geometry, image, weight))


def test_cores_share_the_rows_of_an_image_that_is_larger_than_its_weights() -> None:
    def row_blocks(cores: int, size: int, channels: int) -> int:
        geometry = Geometry(
            channels=channels, filters=channels, groups=1, size=(size, size), kernel=(1, 1), strides=(1, 1),
            padding=(0, 0, 0, 0), dilation=(1, 1),
        )  # fmt: skip
        return choose_plan(replace(MACHINE, cores=cores), geometry).row_blocks

    assert [row_blocks(cores, 20, 64) for cores in (1, 2, 4)] == [1, 2, 4]
    assert [row_blocks(cores, 8, 256) for cores in (1, 2)] == [1, 1]  # to read 256 KB of weights twice costs more


@pytest.mark.parametrize("kernel", [1, 3])
def test_an_image_of_any_size_has_an_even_number_of_vectors_where_tiles_gain_by_it(kernel: int) -> None:
    """Of eleven vectors a tile has one or all; of a twelfth, which is not written, two or three."""
    weight = np.random.default_rng(0).normal(size=(11 * 8, 48, kernel, kernel)).astype(np.float32)
    geometry = Geometry(
        channels=48, filters=88, groups=1, size=(None, None), kernel=(kernel, kernel), strides=(1, 1),
        padding=(kernel // 2,) * 4, dilation=(1, 1),
    )  # fmt: skip
    assert [stored_blocks(MACHINE, replace(geometry, filters=count * 8)) for count in (11, 12)] == [12, 12]
    assert stored_blocks(MACHINE, replace(geometry, filters=88, channels=88, groups=11)) == 11
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[kernel // 2] * 4)
    source = model([node], {"x": ("batch", 48, "height", "width")}, {"w": weight})
    sizes = [{"batch": batch, "height": height, "width": width} for batch, height, width in
             ((1, 7, 7), (2, 1, 3), (1, 13, 16), (3, 2, 1), (1, 1, 1))]  # fmt: skip
    assert_same(source, sizes, terms=48 * kernel**2, tag=LEVEL)
