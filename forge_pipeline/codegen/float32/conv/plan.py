"""How a direct convolution is cut into row blocks and tiles, as its sizes, the caches and the registers have it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.tir.edges import skipped_taps
from forge_pipeline.codegen.tir.edges.edge_tiles import Window
from forge_pipeline.codegen.tir.machine import STREAMED_BYTES, Machine, Tile, choose_tile, divisors

FOREIGN_BYTES = 4
"""Bytes that a core gets in a cycle of what another core wrote (measured on a Sapphire Rapids)."""

LIGHT = 4
"""How many times the weights an image is at least where cores share its rows, and each of them reads all weights."""

SEEN = 0.95
"""The part of the taps that lie on the image for some pixel of a tile, below which it pays to ask for each."""


def channel_parts(machine: Machine, geometry: Geometry) -> list[slice]:
    """Return the channels that are summed up apart: all, but where a tile's weights would leave the second cache.

    A tile reads the weights of its filters from end to end, and so does the next: 3 x 3 pixels of 2048 channels are
    2 MiB for two vectors. Of parts, the weights stay, and what they add up to is small.
    """
    pixels = machine.item * geometry.kernel[0] * geometry.kernel[1] * 2 * machine.lanes
    if geometry.groups > 1 or geometry.channels * pixels <= machine.l2:
        return [slice(0, geometry.channels)]
    blocks = -(-geometry.channels // machine.lanes)
    most = max(1, machine.l2 // 2 // pixels // machine.lanes)
    each = -(-blocks // -(-blocks // most)) * machine.lanes
    return [slice(first, min(first + each, geometry.channels)) for first in range(0, geometry.channels, each)]


def in_pairs(machine: Machine, geometry: Geometry) -> bool:
    """Return whether an image in blocks is read in bfloat16, and multiplied in pairs of neighbouring channels."""
    return machine.multiplies_pairs(None) and geometry.channels >= machine.lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How results are cut: the image into ``row_blocks``, each of them into tiles of pixels by vectors of filters.

    A row block's pixels are to stay in the second cache while all filters are computed from them. ``oc_blocks`` are the
    vectors of filters, some perhaps only there to fill the last tile. ``cycles`` are expected for an image on a core.
    ``skips``: tiles leave out the taps that lie beside the image for all of their pixels. ``copies``: a row block is
    copied before it is read, from an image whose channels are a power of two apart.
    """

    tile: Tile
    row_blocks: int
    oc_blocks: int
    cycles: float
    skips: bool = False
    copies: bool = False


@cache
def choose_plan(machine: Machine, geometry: Geometry) -> Plan:
    """Return the plan with the fewest cycles, of equal ones that with the larger row blocks."""
    oc_blocks = -(-geometry.filters // machine.lanes)
    rows, columns = geometry.output
    if columns == 1:  # tiles go down the image
        rows, columns = columns, rows
    is_flat = is_pointwise(geometry)
    extent = rows * columns if is_flat else rows
    options = [
        _plan(machine, geometry, stored, pixels=size if is_flat else columns, row_blocks=extent // size)
        for stored in ((oc_blocks, oc_blocks + 1) if geometry.groups == 1 else (oc_blocks,))
        for size in divisors(extent, extent)
    ]
    return min(options, key=lambda plan: (plan.cycles, plan.row_blocks))


def _plan(machine: Machine, geometry: Geometry, oc_blocks: int, *, pixels: int, row_blocks: int) -> Plan:
    """Return the plan for ``row_blocks``, tiles being cut from ``pixels`` in a row."""
    out_h, out_w = geometry.output
    steps, item = (geometry.steps, machine.item) if not in_pairs(machine, geometry) else (geometry.steps // 2, 2)
    channels = geometry.channels // geometry.groups
    per_group = oc_blocks // geometry.groups
    tile = choose_tile(machine, pixels=pixels, vectors=per_group, steps=steps)
    computing = machine.fma_cycles(out_h * out_w * oc_blocks * steps) / tile.efficiency
    seen = seen_taps(geometry, tile.pixels)
    skips = seen < SEEN and not machine.halves
    computing *= seen if skips else 1
    shares = row_blocks if any(geometry.padding) else row_blocks * (oc_blocks // tile.vectors)
    idle = -(-shares // machine.cores) * machine.cores / shares
    image = item * channels * out_h * out_w * geometry.strides[0] * geometry.strides[1] // row_blocks
    passes = 1 if image <= machine.l2 // 2 else per_group // tile.vectors
    weights = item * geometry.steps * oc_blocks * machine.lanes
    reading = row_blocks * machine.streaming_cycles(weights) + row_blocks * passes * machine.streaming_cycles(image)
    apart = item * machine.lanes * out_h * out_w
    room = machine.room(apart // row_blocks, apart) // 2
    copies = is_pointwise(geometry) and room < image <= machine.l2 // 2
    reading += row_blocks * image / STREAMED_BYTES if copies else 0
    if row_blocks < machine.cores and row_blocks * image > LIGHT * weights:  # each core reads what the others wrote
        reading += (machine.cores - 1) * row_blocks * image / FOREIGN_BYTES
    return Plan(
        tile=tile, row_blocks=row_blocks, oc_blocks=oc_blocks, cycles=computing * idle + reading, skips=skips,
        copies=copies,
    )  # fmt: skip


def windows_of(geometry: Geometry) -> tuple[Window, Window]:
    """Return what results read along an image of known size, down and across."""
    axes = zip(geometry.size, geometry.padding[:2], geometry.strides, geometry.kernel, geometry.dilation, strict=True)
    rows, columns = (Window(size=size, before=before, stride=stride, taps=taps, dilation=dilation)
                     for size, before, stride, taps, dilation in axes)  # fmt: skip
    return rows, columns


def seen_taps(geometry: Geometry, pixels: int) -> float:
    """Return the part of the taps that tiles of ``pixels`` in a row cannot leave out."""
    (rows, columns), (out_h, out_w) = windows_of(geometry), geometry.output
    if out_w == 1:
        return 1.0
    return skipped_taps.share(rows, out_h, 1) * skipped_taps.share(columns, out_w, pixels)


def leaves_out(geometry: Geometry, plan: Plan | None, dtype: str) -> bool:
    """Return whether tiles leave taps out: as the plan has it, and of an image of any size those of any dilation.

    Not of halves, whose sums are cut into parts.
    """
    is_wide = plan.skips if plan is not None else max(geometry.dilation) > 1
    return is_wide and dtype != "float16" and geometry.output[1] != 1


def zeros_around(geometry: Geometry, plan: Plan | None) -> tuple[int, ...]:
    """Return the padding of an image of which taps are left out: what a tile reads across an edge."""
    _, left, _, right = geometry.padding
    most = (plan.tile.pixels - 1) * geometry.strides[1] if plan is not None else max(left, right)
    return (0, min(left, most), 0, min(right, most))


def is_pointwise(geometry: Geometry) -> bool:
    """Return whether results are of one pixel each, in the image's order: a tile may go on in the next row then."""
    return geometry.kernel == (1, 1) and set(geometry.strides) == {1} and not any(geometry.padding)


def cycles(machine: Machine, geometry: Geometry) -> float:
    """Return the cycles that one image is expected to take on one core."""
    return choose_plan(machine, geometry).cycles
