"""Convolutions over images whose height and width are known only when they run.

The templates are those of `direct` and `depthwise`; tiles are chosen as for a wide image. A row's last tile is cut off
by TVM's loop partitioning, which makes it a copy of its own, so that the tiles before it have no tests in their loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_pipeline.codegen.machine import Machine, choose_tile
from forge_pipeline.codegen.schedules import moves

if TYPE_CHECKING:
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import SBlockRV

WIDTH = 64
"""Pixels of a row for which tiles are chosen."""

ROWS = 64
"""Rows for which it is decided whether threads pay."""

DEPTHWISE_PIXELS = 8
"""Pixels of a tile of a depthwise convolution: as many sums side by side as hide the latency of the additions."""


def schedule_direct(sch: Schedule, machine: Machine, anchor: SBlockRV) -> None:
    """Hold a tile of pixels by filters in registers along the reduction."""
    before, last = moves.split_around(sch, anchor)
    for block in before:
        moves.spread(sch, block, machine)
    n, row, h, w, out, *reduction = sch.get_loops(anchor)
    rows, lanes = (moves.static(sch, loop) for loop in (row, out))
    steps = moves.product(moves.static(sch, loop) for loop in reduction)
    tile = choose_tile(machine, pixels=WIDTH, vectors=rows, steps=steps)
    row_out, row_in = sch.split(row, [None, tile.vectors])
    w_out, w_in = sch.split(w, [None, tile.pixels])
    sch.annotate(w_out, "pragma_loop_partition_hint", 1)
    sch.reorder(n, row_out, h, w_out, *reduction, w_in, row_in, out)
    shared = moves.fuse(sch, [n, row_out, h])
    sch.reverse_compute_at(last, w_out)
    moves.parallel_if_worth(sch, shared, rows * lanes * ROWS * WIDTH * steps)
    sch.vectorize(out)
    sch.unroll(w_in)
    sch.unroll(row_in)
    moves.vectorize_and_unroll(sch, last, below=2, lanes=lanes)
    moves.vectorize_and_unroll(sch, sch.decompose_reduction(anchor, reduction[0]), below=2, lanes=lanes)


def schedule_depthwise(sch: Schedule, machine: Machine, anchor: SBlockRV) -> None:
    """A lane for each channel, a tile of pixels at a time."""
    before, last = moves.split_around(sch, anchor)
    for block in before:
        moves.spread(sch, block, machine)
    n, row, h, w, lane, down, along = sch.get_loops(anchor)
    rows, lanes = (moves.static(sch, loop) for loop in (row, lane))
    taps = moves.static(sch, down) * moves.static(sch, along)
    w_out, w_in = sch.split(w, [None, min(DEPTHWISE_PIXELS, machine.registers // 2)])
    sch.annotate(w_out, "pragma_loop_partition_hint", 1)
    sch.reorder(n, row, h, w_out, down, along, w_in, lane)
    shared = moves.fuse(sch, [n, row, h])
    sch.reverse_compute_at(last, w_out)
    moves.parallel_if_worth(sch, shared, rows * lanes * ROWS * WIDTH * taps)
    sch.vectorize(lane)
    for loop in (w_in, down, along):
        sch.unroll(loop)
    moves.vectorize_and_unroll(sch, last, below=2, lanes=lanes)
    moves.vectorize_and_unroll(sch, sch.decompose_reduction(anchor, down), below=2, lanes=lanes)
