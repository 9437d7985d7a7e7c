"""The machine code of inner loops: sums stay in registers. A vector spilled there would cost a third of the speed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.target import Target
from tests.support.assembly import ALLOWED, FMA, SPILL, hottest_block
from tests.support.half_net import Net
from tests.support.tiled import TILED

STORE = re.compile(r"\tv?mov\w*\t%[xyz]mm\d+, .*\(|\t(str|stp|stur)\tq")
"""A vector on its way to memory: sums that TVM does not keep in registers look so."""
SHAPES = {"pointwise": (14, 256, 64, 1, 1), "3x3 with stride": (28, 64, 128, 3, 2), "few pixels": (7, 128, 64, 1, 1)}


def assembly_of(tag: str, size: int, channels: int, filters: int, kernel: int, stride: int) -> str:
    import tvm
    from tvm import s_tir, te

    from forge_pipeline.codegen.float32.conv import direct
    from forge_pipeline.codegen.float32.conv.geometry import Geometry
    from forge_pipeline.codegen.float32.conv.plan import choose_plan
    from forge_pipeline.codegen.tiled import PASS_CONFIG
    from forge_pipeline.codegen.tir.lowering import pipeline
    from forge_pipeline.codegen.tir.machine import Machine

    target = Target.from_tag(tag)
    machine = Machine.of(target)
    geometry = Geometry(
        channels=channels, filters=filters, groups=1, size=(size, size), kernel=(kernel, kernel),
        strides=(stride, stride), padding=(kernel // 2,) * 4, dilation=(1, 1),
    )  # fmt: skip
    plan = choose_plan(machine, geometry)
    zeros = np.zeros((filters, channels, kernel, kernel))
    packed = direct.pack_weight(zeros, machine.lanes, machine.lanes, oc_blocks=plan.oc_blocks)
    image = te.placeholder((1, channels // machine.lanes, size, size, machine.lanes), name="image")
    weight = te.placeholder(packed.shape, name="weight")
    result = direct.convolve(image, weight, geometry, plan)
    relu = te.compute(result.shape, lambda *index: te.max(result(*index), 0.0), name="relu")
    sch = s_tir.Schedule(te.create_prim_func([image, weight, relu]))
    direct.schedule(sch, machine)
    with tvm.transform.PassContext(config=PASS_CONFIG):
        library = pipeline.build(sch.mod, target)
    return str(library.inspect_source("asm"))


@pytest.mark.every(3)
@pytest.mark.parametrize("tag", ["x86-64/v4", "x86-64/v3", "amd/zen3", "raspberry-pi/5"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_hottest_loop_of_a_convolution_spills_no_vectors(tag: str, shape: str) -> None:
    block = hottest_block(assembly_of(tag, *SHAPES[shape]))
    multiplications = sum(bool(FMA.search(line)) for line in block)
    spills = [line for line in block if SPILL.search(line)]
    assert multiplications >= 6
    assert len(spills) <= ALLOWED, spills


@pytest.mark.parametrize("tag", ["x86-64/v3", "raspberry-pi/5"])
def test_a_tile_of_sums_is_no_allocation(tag: str) -> None:
    assert "AllocWorkspace" not in assembly_of(tag, *SHAPES["pointwise"])


def test_a_spill_is_recognized() -> None:
    assert SPILL.search("\tvmovups\t%zmm3, 64(%rsp)")
    assert SPILL.search("\tvmovaps\t128(%rsp), %ymm3")
    assert SPILL.search("\tstr\tq3, [sp, #64]")
    assert not SPILL.search("\tvmovups\t64(%rsi), %zmm3")
    assert not SPILL.search("\tvmovups\t%zmm3, 64(%rbp,%r11)")  # rbp as any other register: results
    assert not SPILL.search("\tldr\tq3, [x2, #64]")


TAGS = ("x86-64/v4", "x86-64/v3", "raspberry-pi/5")
FEWEST = 6


def unsized(machine: Any, size: int = 3) -> list[Any]:
    """3x3 over 64 channels, 128 filters; batch, height and width symbolic."""
    from tvm import te, tirx

    from forge_pipeline.codegen.float32.conv import direct

    lanes = machine.lanes
    packed = direct.pack_weight(np.zeros((128, 64, size, size)), lanes, lanes)
    shape = (tirx.Var("n", "int64"), 64 // lanes, tirx.Var("h", "int64"), tirx.Var("w", "int64"), lanes)
    image, weight = te.placeholder(shape, name="image"), te.placeholder(packed.shape, name="weight")
    geometry = geometry_of(64, 128, 1, shape[2:4], size)
    return [image, weight, direct.convolve(image, weight, geometry, None)]


def unsized_pointwise(machine: Any) -> list[Any]:
    """1x1 over 64 channels, 128 filters; batch, height and width symbolic."""
    return unsized(machine, 1)


def unsized_depthwise(machine: Any) -> list[Any]:
    """3x3 over 64 channels, each by itself."""
    from tvm import te, tirx

    from forge_pipeline.codegen.float32.conv import depthwise

    lanes = machine.lanes
    shape = (tirx.Var("n", "int64"), 64 // lanes, tirx.Var("h", "int64"), tirx.Var("w", "int64"), lanes)
    image, weight = te.placeholder(shape, name="image"), te.placeholder((64 // lanes, 3, 3, lanes), name="weight")
    return [image, weight, depthwise.convolve(image, weight, geometry_of(64, 64, 64, shape[2:4]))]


def channels_last(machine: Any) -> list[Any]:
    """3x3 over 64 channels, 128 filters, 28 x 28 pixels."""
    from tvm import te

    from forge_pipeline.codegen.float32.conv import channels_last

    image = te.placeholder((1, 1, 28, 28, 64), name="image")
    weight = te.placeholder((3, 3, 64, 128), name="weight")
    geometry = geometry_of(64, 128, 1, (28, 28))
    return [image, weight, channels_last.convolve(image, weight, geometry)]


def geometry_of(channels: int, filters: int, groups: int, size: Any, kernel: int = 3) -> Any:
    from forge_pipeline.codegen.float32.conv.geometry import Geometry

    return Geometry(
        channels=channels, filters=filters, groups=groups, size=size, kernel=(kernel, kernel), strides=(1, 1),
        padding=(kernel // 2,) * 4, dilation=(1, 1),
    )  # fmt: skip


@pytest.mark.every(10)
@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("kernel", [unsized, unsized_pointwise, unsized_depthwise, channels_last])
def test_the_hottest_loop_spills_no_vectors(tag: str, kernel: Callable[..., Any]) -> None:
    import tvm
    from tvm import te

    from forge_pipeline.codegen.schedule_kernels import rewrite_kernels, schedule_kernels
    from forge_pipeline.codegen.tiled import PASS_CONFIG
    from forge_pipeline.codegen.tir.lowering import pipeline
    from forge_pipeline.codegen.tir.machine import Machine

    target = Target.from_tag(tag)
    machine = Machine.of(target)
    function = te.create_prim_func(kernel(machine), index_dtype_override="int64").with_attr("global_symbol", "main")
    scheduled = rewrite_kernels(schedule_kernels(tvm.IRModule({"main": function}), machine), machine)
    assert not scheduled.generic
    with tvm.transform.PassContext(config=PASS_CONFIG):
        library = pipeline.build(scheduled.module, target)
    block = hottest_block(str(library.inspect_source("asm")))
    assert sum(bool(FMA.search(line)) for line in block) >= FEWEST
    spills = [line for line in block if SPILL.search(line)]
    if kernel is unsized_depthwise:  # taps are unrolled: the block stores results, and reads weights from anywhere
        spills = [line for line in spills if STORE.search(line)]
    else:
        assert not [line for line in block if STORE.search(line)]
    assert len(spills) <= ALLOWED, spills


@pytest.mark.parametrize(("size", "channels"), [(23, 64), (19, 728)])
def test_a_smaller_last_tile_costs_the_others_nothing(size: int, channels: int, tmp_path: Path) -> None:
    net = Net()
    model = net.finish((1, channels, size, size), net.conv("x", channels, channels, 1))
    build(model, Target.from_tag("x86-64/v4"), TILED, dump=tmp_path)
    block = hottest_block(next(tmp_path.glob("*-code.txt")).read_text())
    assert sum(bool(FMA.search(line)) for line in block) >= 16
    assert not [line for line in block if SPILL.search(line)]
