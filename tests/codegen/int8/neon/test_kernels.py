"""Products of bytes on NEON: where weights lie, which tiles are chosen, and what LLVM makes of them.

``tests/aarch64`` computes with them.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.int8.isa.table import INSTRUCTION_SETS
from forge_pipeline.codegen.int8.neon.tile import Plan, choose_plan
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.target import Target
from tests.support.int8.compare import assembly_of
from tests.support.int8.net import IN, OUT, Net, exact_scales

SDOT, SMULL, I8MM = "arm/cortex-a76", "arm/cortex-a72", "arm/neoverse-v1"
ALLOWED = 2
"""Moves to or from the stack among dozens of multiplications: one vector that LLVM has no register for."""
MICRO_KERNELS = {kernel.name: kernel for isa in INSTRUCTION_SETS.values() for kernel in isa.micro_kernels}


@given(name=st.sampled_from(sorted(MICRO_KERNELS)), data=st.data())
def test_packed_weights_lie_where_a_micro_kernel_reads_them(name: str, data: st.DataObject) -> None:
    kernel = MICRO_KERNELS[name]
    whole = kernel.k_inner
    rows, blocks, height, width = (data.draw(st.integers(1, 3)) for _ in range(4))
    weight = np.arange(rows * 4 * blocks * whole * height * width).reshape(rows * 4, blocks * whole, height, width)
    packed = kernel.pack(weight)
    filter_, channel = (data.draw(st.integers(0, extent - 1)) for extent in weight.shape[:2])
    y, x = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    lanes = zip(kernel.lane, kernel.split(kernel.lane, filter_ % 4), strict=True)
    at = {**dict(lanes), **dict(zip(kernel.step, kernel.split(kernel.step, channel % whole), strict=True))}
    inner = tuple(at[axis] for axis in kernel.weights)
    assert packed[(filter_ // 4, channel // whole, y, x, *inner)] == weight[filter_, channel, y, x]


def plan(tag: str, channels: int, filters: int, size: tuple[int, int], kernel: int = 1, groups: int = 1) -> Plan | None:
    geometry = Geometry(
        channels=channels, filters=filters, groups=groups, size=size, kernel=(kernel, kernel), strides=(1, 1),
        padding=(kernel // 2,) * 4, dilation=(1, 1),
    )  # fmt: skip
    return choose_plan(Machine.of(Target.from_tag(tag)), geometry)


def test_matrix_instructions_serve_where_pairs_are_filled_and_dot_products_where_they_are_not() -> None:
    wide = plan(I8MM, 64, 64, (16, 16), 3)
    assert wide is not None
    assert (wide.kernel.name, wide.pixels * wide.vectors) == ("usmmla", 16)
    few = plan(I8MM, 4, 64, (16, 16))
    assert few is not None
    assert few.kernel.name == "usdot"
    assert plan(I8MM, 64, 64, (1, 1)) is None
    assert plan("x86-64/v3", 64, 64, (16, 16)) is None


@pytest.mark.parametrize("tag", [SDOT, SMULL, I8MM])
@pytest.mark.parametrize("size", [(7, 7), (14, 14), (112, 112), (1, 3)])
def test_a_tile_fits_the_registers(tag: str, size: tuple[int, int]) -> None:
    machine = Machine.of(Target.from_tag(tag))
    chosen = plan(tag, 32, 96, size, 3)
    if chosen is not None:
        raw = not chosen.copies
        assert chosen.kernel.registers(chosen.pixels, chosen.vectors, raw=raw) <= machine.registers
        assert 24 % chosen.vectors == 0


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("tag", "multiply", "least"), [(SDOT, r"sdot\t.*\.4b\[\d\]", 16), (SMULL, "sml?al|smull", 32), (I8MM, "usmmla", 16)]
)
def test_the_hottest_loop_multiplies_by_element_and_keeps_its_sums(tag: str, multiply: str, least: int) -> None:
    net = Net(96, 256)
    product = net.node("MatMul", net.pair("x", IN), net.weight((256, 64), exact_scales(64), axis=1))
    assembly = assembly_of(net.finish(net.pair(product, OUT)), tag)
    blocks = re.split(r"\n\.?[\w.]+:|\tb\.\w+\t|\tcbn?z\t|\tb\t", assembly)  # at labels and jumps
    loop = max(blocks, key=lambda block: len(re.findall(multiply, block)))
    assert len(re.findall(multiply, loop)) >= least
    spills = re.findall(r"\t(?:st|ld)[rpu]+\tq.*\[sp", loop)
    assert len(re.findall(r"\tst[rpu]+\tq", loop)) <= len(spills) <= ALLOWED
    assert "sqxtun" in assembly
