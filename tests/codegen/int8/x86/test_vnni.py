"""What convolutions of bytes are made of on CPUs with VNNI, by their machine code: it takes no such CPU to read it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.int8.conv import winograd
from forge_pipeline.codegen.int8.conv.winograd import LARGE, SMALL, Transform
from forge_pipeline.codegen.int8.isa.table import dot_product
from forge_pipeline.codegen.int8.register_tile import choose_even_tile
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.target import Target
from tests.support.int8.compare import OPTIONS, assembly_of
from tests.support.int8.net import OUT, Net, convolution

AVX512, AVX2 = "intel/sapphire-rapids", "intel/alder-lake"
STACK = re.compile(r"mov\w*\t.*\(%rsp\)")


def geometry(size: int, channels: int, filters: int) -> Geometry:
    return Geometry(
        channels=channels, filters=filters, groups=1, size=(size, size), kernel=(3, 3), strides=(1, 1),
        padding=(1,) * 4, dilation=(1, 1),
    )  # fmt: skip


def assembly(tag: str, size: int, channels: int, filters: int, kernel: str, **attributes: Any) -> str:
    net = Net(1, channels, size, size)
    result = convolution(net, channels, filters, 3, attributes.pop("groups", 1), pads=[1] * 4, **attributes)
    return assembly_of(net.finish(net.pair(result, OUT)), tag, kernel)


def hottest(text: str, instruction: str) -> str:
    """Return the basic block with the most of an instruction."""
    return max(re.split(r"\n\.?(?!Ltmp)\w+:|\tj\w+\t", text), key=lambda block: block.count(instruction))


@pytest.mark.every(2)
@pytest.mark.parametrize("tag", [AVX512, AVX2])
def test_transformed_tiles_are_multiplied_and_added_by_one_instruction(tag: str) -> None:
    text = assembly(tag, 8, 32, 32, "conv2d_u8_winograd")
    loop = hottest(text, "vpdpwssd")
    assert loop.count("vpdpwssd") >= 32
    assert loop.count("vpaddd") == 0
    assert "pmaddwd" not in text
    assert "vpdpbusd" not in text


def test_a_row_of_the_kernel_reads_each_pixel_once_where_sums_are_one_vector_of_filters() -> None:
    text = assembly(AVX512, 16, 16, 16, "conv2d_u8", strides=[1, 1])
    loop = hottest(text, "vpdpbusd")
    sums, reads = loop.count("vpdpbusd"), loop.count("vpbroadcastd")
    assert sums >= 48
    assert reads * 5 <= sums * 2
    assert not STACK.findall(loop)


@settings(deadline=None)
@given(
    st.sampled_from([AVX512, AVX2, "x86-64/v3", "arm/cortex-a76"]),
    st.integers(1, 40), st.integers(1, 9), st.integers(1, 3), st.integers(1, 3), st.integers(1, 8), st.integers(0, 3),
)  # fmt: skip
def test_neighbours_share_pixels_only_where_they_overlap_and_all_find_room_in_registers(
    tag: str, width: int, kernel: int, stride: int, dilation: int, rows: int, edge: int
) -> None:
    machine = Machine.of(Target.from_tag(tag))
    shape = Geometry(
        channels=64, filters=rows * machine.lanes, groups=1, size=(40, width + kernel * dilation),
        kernel=(3, kernel), strides=(1, stride), padding=(edge,) * 4, dilation=(1, dilation),
    )  # fmt: skip
    tile = choose_even_tile(machine, shape, rows, 3 * kernel * 16, 64 // machine.lanes)
    assert rows % tile.vectors == 0
    assert dot_product(machine).fits(machine, tile.pixels, tile.vectors) or tile.pixels == tile.vectors == 1
    if tile.shares:
        assert "vnni" in str(machine.dot_product)
        assert (tile.vectors, dilation) == (1, 1)
        assert kernel > stride
        assert tile.pixels + 2 * kernel <= machine.registers


@pytest.mark.parametrize("groups", [1, 16])
def test_no_pixel_of_a_padded_copy_is_asked_for_being_inside(groups: int) -> None:
    from forge_pipeline.codegen.lowering import lower
    from forge_pipeline.codegen.onnx_import.importer import import_model, prepare

    net = Net(1, 16, 8, 8)
    model = net.finish(net.pair(convolution(net, 16, 16, 3, groups, pads=[1] * 4), OUT))
    script = lower(import_model(prepare(model)), Target.from_tag(AVX512), OPTIONS).module.script(show_meta=False)
    assert "pad" in script
    assert "if_then_else" not in script


@pytest.mark.parametrize(
    ("tag", "size", "channels", "filters", "expected"),
    [
        (AVX512, 56, 64, 64, LARGE),
        (AVX512, 28, 128, 128, LARGE),
        (AVX2, 28, 128, 128, LARGE),
        (AVX512, 14, 256, 256, None),
        (AVX512, 7, 512, 512, None),
        (AVX2, 7, 512, 512, None),
        (AVX512, 32, 16, 16, None),
        (AVX512, 55, 32, 64, None),
    ],
)
def test_tiles_are_transformed_where_that_takes_fewer_cycles_weights_out_of_the_cache_included(
    tag: str, size: int, channels: int, filters: int, expected: Transform | None
) -> None:
    weight = np.ones((filters, channels, 3, 3), np.int8)
    machine = Machine.of(Target.from_tag(tag))
    assert winograd.choose(machine, geometry(size, channels, filters), weight) is expected


def test_sums_without_room_for_their_multiple_are_left_to_the_smaller_tile_or_the_direct_convolution() -> None:
    machine = Machine.of(Target.from_tag(AVX512))
    full = np.full((128, 128, 3, 3), 127, np.int8)
    assert not LARGE.fits(full)
    assert winograd.choose(machine, geometry(28, 128, 128), full) is SMALL
    assert winograd.choose(machine, geometry(12, 128, 64), full[:64]) is None
    assert winograd.choose(machine, geometry(12, 128, 64), full[:64] // 2) is LARGE
