"""A pointwise convolution and the depthwise one that reads it, in one kernel: rows between them stay in the cache.

For a block of rows and as many channels as a tile of the pointwise convolution has, what the depthwise one reads is
computed into a buffer of a thread's own. Blocks of rows have a few rows of it in common; these are computed twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import te
from tvm.s_tir import Schedule

from forge_pipeline.codegen.float32.conv import depthwise, direct
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.edges import edge_tiles
from forge_pipeline.codegen.tir.edges.edge_tiles import Window
from forge_pipeline.codegen.tir.machine import Machine, Tile, choose_tile, divisors

NAME = "expand_depthwise"

GAIN = 1.5
"""How many times longer memory has to take than computing meanwhile."""

LEAST_L3 = 4 << 20
"""Bytes of a third cache that are reckoned with where a target has less: its CPUs may have more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The tile of the pointwise convolution, rows of results in a block, and the part that is computed twice."""

    tile: Tile
    rows: int
    twice: float


def plan(machine: Machine, *, blocks: int, steps: int, rows: Window, columns: Window, results: int) -> Plan:
    """Return how ``results`` rows are cut, of ``blocks`` vectors of channels with ``steps`` multiply-adds each.

    What lies between takes three quarters of the second cache at most, and there is a block for each core.
    """
    tile = choose_tile(machine, pixels=columns.size, vectors=blocks, steps=steps)
    row_bytes = 4 * columns.size * tile.vectors * machine.lanes
    reach, step = (rows.taps - 1) * rows.dilation + 1, rows.stride
    fitting = [
        count
        for count in divisors(results, results)
        if ((count - 1) * step + reach) * row_bytes <= machine.l2 * 3 // 4
        and results // count * (blocks // tile.vectors) >= machine.cores
    ]
    count = max(fitting or [1])
    return Plan(tile=tile, rows=count, twice=max(0, reach - step) / (count * step))


def pays(machine: Machine, *, batch: int, blocks: int, steps: int, rows: Window, columns: Window, results: int) -> bool:
    """Return whether it is quicker than writing all that lies between, and reading it again.

    That takes time where it leaves the third cache, and the pointwise convolution has too little to compute meanwhile:
    measured, a middle that stays in the third cache costs nothing, and one of 24 multiply-adds for a result hardly.
    """
    vectors = batch * blocks * rows.size * columns.size
    size = 4 * vectors * machine.lanes
    computing = machine.fma_cycles(vectors * steps)
    twice = plan(machine, blocks=blocks, steps=steps, rows=rows, columns=columns, results=results).twice
    return size > machine.l2 + max(machine.l3, LEAST_L3) and machine.streaming_cycles(2 * size) > GAIN * computing * (
        1 + twice
    )


def expand(image: te.Tensor, weight: te.Tensor, blocks: int) -> te.Tensor:
    """Describe a pointwise convolution of a blocked image with packed weights: ``blocks`` vectors of channels."""
    batch, _, height, width, lanes = image.shape
    part, channel = channels = direct.channel_axes(image, weight)
    return te.compute(
        (batch, blocks, height, width, lanes),
        lambda n, oc, h, w, out: te.sum(
            direct.product(image, (n, 0, h, w), channels, weight(oc, part, 0, 0, channel, out)), axis=channels
        ),
        name="expand",
        attrs={primitives.FAMILY: NAME},
    )


def schedule(sch: Schedule, machine: Machine) -> None:
    """Compute the rows between the two, then what the depthwise convolution makes of them."""
    anchor, sums = primitives.find(sch, depthwise.NAME), primitives.find(sch, NAME)
    rows, columns = depthwise.windows_of(sch.get(anchor).annotations)
    before, last = primitives.split_around(sch, anchor)
    *chain, middle = (block for block in before if primitives.family_of(sch, block) not in (primitives.PAD, NAME))
    pads = [block for block in before if primitives.family_of(sch, block) == primitives.PAD]
    for block in (*chain, *pads):
        sch.compute_inline(block)
    n, block, h, w, lane, kernel_h, kernel_w = sch.get_loops(anchor)
    steps = primitives.product(primitives.extent(sch, loop) for loop in sch.get_loops(sums)[-2:])
    results, lanes = primitives.static(sch, h), primitives.static(sch, lane)
    chosen = plan(machine, blocks=primitives.static(sch, block), steps=steps, rows=rows, columns=columns,
                  results=results)  # fmt: skip
    pixels = depthwise.tile_width(machine, primitives.static(sch, w))
    block_out, block_in = sch.split(block, [None, chosen.tile.vectors])
    h_out, h_in = sch.split(h, [None, chosen.rows])
    w_out, w_in = sch.split(w, [None, pixels])
    sch.reorder(n, h_out, block_out, block_in, h_in, w_out, kernel_h, kernel_w, w_in, lane)
    shared = primitives.fuse(sch, [n, h_out, block_out])
    sch.reverse_compute_at(last, w_out)
    sch.parallel(shared)
    sch.compute_at(middle, shared, preserve_unit_loops=True)
    channel, row, along, filler = sch.get_loops(middle)[-4:]
    over_tiles, pixel = sch.split(along, [None, chosen.tile.pixels])
    sch.reorder(row, over_tiles, pixel, channel, filler)
    sch.set_scope(sums, 0, "local")
    sch.compute_at(sums, over_tiles, preserve_unit_loops=True)
    *_, sum_channel, _, sum_pixel, out, reduction, inner = sch.get_loops(sums)
    sch.reorder(reduction, inner, sum_pixel, sum_channel, out)
    sch.vectorize(out)
    primitives.unroll_tile(sch, sums, middle, reduction, (sum_pixel, sum_channel), below=4, lanes=lanes)
    sch.vectorize(lane)
    edge_tiles.mark(sch, anchor, h_in, w_out, axes=(2, 3, 5), rows=rows, columns=columns, tile=pixels, unrolls=True)
    primitives.unroll_tile(sch, anchor, last, kernel_h, (w_in, kernel_h, kernel_w), below=4, lanes=lanes)
