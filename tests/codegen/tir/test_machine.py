"""The machine model: tiles that fit, that cover, and that say what they expect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.codegen.float32.products import open_matmul
from forge_pipeline.codegen.tir.machine import Machine, choose_tile, divisors
from forge_pipeline.target import Target, described

MACHINES = {target.tag: Machine.of(target) for target in described() if target.kind == "llvm"}


@given(
    tag=st.sampled_from(sorted(MACHINES)),
    pixels=st.integers(1, 300),
    vectors=st.integers(1, 130),
    steps=st.integers(1, 5000),
    even=st.booleans(),
)
def test_a_tile_fits_the_registers_divides_the_vectors_and_leaves_the_tail_it_names(
    tag: str, pixels: int, vectors: int, steps: int, even: bool
) -> None:
    machine = MACHINES[tag]
    tile = choose_tile(machine, pixels=pixels, vectors=vectors, steps=steps, even=even)
    assert machine.fits(tile.pixels, tile.vectors)
    assert vectors % tile.vectors == 0
    assert tile.tail == pixels % tile.pixels
    assert not (even and tile.tail)
    assert 0 < tile.efficiency <= 1


@pytest.mark.parametrize(
    ("tag", "pixels", "found"),
    [
        ("x86-64/v4", 56, "14 x 2 vectors: 96% of peak expected"),
        ("x86-64/v4", 7, "7 x 2 vectors: 93% of peak expected"),
        ("raspberry-pi/5", 56, "8 x 2 vectors: 94% of peak expected"),
    ],
)
def test_a_tile_explains_itself(tag: str, pixels: int, found: str) -> None:
    assert str(choose_tile(MACHINES[tag], pixels=pixels, vectors=8, steps=576)) == found


def test_sse_has_no_fused_multiply_add_and_so_half_the_speed_and_a_register_less() -> None:
    sse, avx2 = (Machine.of(Target.from_tag(f"x86-64/{level}")) for level in ("v2", "v3"))
    assert not sse.fused
    assert avx2.fused
    assert sse.fma_cycles(8) == 2 * avx2.fma_cycles(8)
    assert not sse.fits(14, 1)
    assert avx2.fits(14, 1)


@given(number=st.integers(1, 2000), most=st.integers(1, 2000))
def test_divisors_are_all_of_them_and_ascend(number: int, most: int) -> None:
    assert divisors(number, most) == [d for d in range(1, number + 1) if number % d == 0 and d <= most]


@pytest.mark.parametrize(
    ("tag", "apart", "places"),
    [
        ("x86-64/v4", 4096, 8),  # 1024 floats: one set, as many places as the cache has ways
        ("x86-64/v4", 12288, 8),
        ("x86-64/v4", 2048, 16),
        ("x86-64/v4", 3072, 32),  # 768 floats
        ("x86-64/v4", 4100, 512),  # all lines of the cache
        ("intel/sapphire-rapids", 4096, 12),
        ("raspberry-pi/5", 16384, 4),
    ],
)
def test_rows_a_page_apart_lose_each_others_lines(tag: str, apart: int, places: int) -> None:
    machine = MACHINES[tag]
    assert machine.conflict_cycles(places, apart) == 0
    assert 0 < machine.conflict_cycles(places + 1, apart) < machine.conflict_cycles(places + 2, apart)
    assert machine.conflict_cycles(1000, 0) == 0


@pytest.mark.parametrize("tag", ["x86-64/v4", "amd/zen4"])
def test_tiles_have_no_more_rows_than_there_are_places(tag: str) -> None:
    machine = MACHINES[tag]
    for rows in (64, 128, 197, None):
        width = open_matmul.panel_vectors(machine, 1024, 1024, rows, 4096)
        assert open_matmul.choose_rows(machine, width, 1024, rows, 4096)[1] <= 8
