"""Convolutions over images whose height and width are known only when they run.

The templates are those of `direct` and `depthwise`. Pixels of a pointwise convolution are one row (``flat``); the last
tile of a row is moved back to end with it (``tails``). A band of rows is computed from a padded copy of what it reads.
"""

from __future__ import annotations

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.codegen.tir.tail_tiles import NARROW, TILES

WIDTHS = (10, 20, 40, 80, 160)
"""Pixels of the rows for which tiles are chosen: those of a detector's feature maps."""

BAND = 8
"""Rows that are computed from one padded copy."""


def schedule_pointwise(sch: Schedule, machine: Machine, anchor: SBlockRV) -> None:
    """Compute all filters from a band of pixels that stays in the second cache, then the next."""
    before, last = primitives.split_around(sch, anchor)
    for block in before:
        primitives.spread(sch, block, machine)
    n, row, h, w, out, *reduction = sch.get_loops(anchor)
    rows, lanes = (primitives.static(sch, loop) for loop in (row, out))
    steps = primitives.product(primitives.static(sch, loop) for loop in reduction)
    pixels, vectors = _tile(sch, machine, rows, steps, widths=(primitives.UNKNOWN**2,))
    tiles = max(1, machine.l2 // 2 // (4 * steps * pixels))
    row_out, row_in = sch.split(row, [None, vectors])
    band, w_out, w_in = sch.split(w, [None, tiles, pixels])
    if pixels > 1:
        sch.annotate(w_out, TILES, pixels)
    sch.reorder(n, h, band, row_out, w_out, *reduction, w_in, row_in, out)
    shared = primitives.fuse(sch, [n, h, band, row_out])
    sch.reverse_compute_at(last, w_out)
    primitives.parallel_if_worth(sch, shared, rows * lanes * primitives.UNKNOWN**2 * steps)
    sch.vectorize(out)
    sch.unroll(w_in)
    sch.unroll(row_in)
    primitives.vectorize_and_unroll(sch, last, below=2, lanes=lanes)
    primitives.vectorize_and_unroll(sch, sch.decompose_reduction(anchor, reduction[0]), below=2, lanes=lanes)


def schedule_direct(sch: Schedule, machine: Machine, anchor: SBlockRV) -> None:
    """Hold a tile of pixels by filters in registers along the reduction."""
    before, last = primitives.split_around(sch, anchor)
    n, row, h, w, out, *reduction = sch.get_loops(anchor)
    rows, lanes = (primitives.static(sch, loop) for loop in (row, out))
    steps = primitives.product(primitives.static(sch, loop) for loop in reduction)
    pixels, vectors = _tile(sch, machine, rows, steps, widths=WIDTHS)
    row_out, row_in = sch.split(row, [None, vectors])
    band, h_in = sch.split(h, [None, BAND])
    w_out, w_in = sch.split(w, [None, pixels])
    if pixels > 1:
        sch.annotate(w_out, TILES, pixels)
    sch.reorder(n, band, row_out, h_in, w_out, *reduction, w_in, row_in, out)
    is_padded = any(primitives.family_of(sch, block) == primitives.PAD for block in before)
    shared = primitives.fuse(sch, [n, band] if is_padded else [n, band, row_out])
    depth = 4 if is_padded else 3
    sch.reverse_compute_at(last, w_out)
    primitives.parallel_if_worth(sch, shared, rows * lanes * primitives.UNKNOWN**2 * steps)
    for block in before:
        if primitives.family_of(sch, block) == primitives.PAD:
            sch.compute_at(block, shared)
            primitives.vectorize_and_unroll(sch, block, below=100, lanes=lanes)
        else:
            primitives.spread(sch, block, machine)
    sch.vectorize(out)
    sch.unroll(w_in)
    sch.unroll(row_in)
    primitives.vectorize_and_unroll(sch, last, below=depth, lanes=lanes)
    primitives.vectorize_and_unroll(sch, sch.decompose_reduction(anchor, reduction[0]), below=depth, lanes=lanes)


def schedule_depthwise(sch: Schedule, machine: Machine, anchor: SBlockRV) -> None:
    """A lane for each channel, a tile of pixels at a time."""
    before, last = primitives.split_around(sch, anchor)
    n, row, h, w, lane, down, along = sch.get_loops(anchor)
    rows, lanes = (primitives.static(sch, loop) for loop in (row, lane))
    taps = primitives.static(sch, down) * primitives.static(sch, along)
    pixels = 1 if _is_narrow(sch) else min(DEPTHWISE_PIXELS, machine.registers // 2)
    band, h_in = sch.split(h, [None, BAND])
    w_out, w_in = sch.split(w, [None, pixels])
    if pixels > 1:
        sch.annotate(w_out, TILES, pixels)
    sch.reorder(n, row, band, h_in, w_out, down, along, w_in, lane)
    shared = primitives.fuse(sch, [n, row, band])
    sch.reverse_compute_at(last, w_out)
    primitives.parallel_if_worth(sch, shared, rows * lanes * primitives.UNKNOWN**2 * taps)
    for block in before:
        sch.compute_at(block, shared)
        sch.vectorize(sch.get_loops(block)[-1])
    sch.vectorize(lane)
    for loop in (w_in, down, along):
        sch.unroll(loop)
    primitives.vectorize_and_unroll(sch, last, below=3, lanes=lanes)
    primitives.vectorize_and_unroll(sch, sch.decompose_reduction(anchor, down), below=3, lanes=lanes)


DEPTHWISE_PIXELS = 8
"""Pixels of a tile of a depthwise convolution: as many sums side by side as hide the latency of the additions."""


def _is_narrow(sch: Schedule) -> bool:
    return NARROW in (sch.mod["main"].attrs or {})


def _tile(sch: Schedule, machine: Machine, rows: int, steps: int, *, widths: tuple[int, ...]) -> tuple[int, int]:
    """Return pixels and vectors of the tile that takes the fewest cycles for a pixel, on average over ``widths``."""
    best: tuple[float, int, int] | None = None
    for vectors in (wide for wide in (1, 2, 3, 4) if rows % wide == 0):
        for pixels in range(1, (1 if _is_narrow(sch) else machine.registers) + 1):
            pairs = pixels if machine.indexed else 0  # activations of two steps, which LLVM loads at once
            if not machine.fits(pixels, vectors) or pixels * vectors + vectors + 2 * pairs > machine.registers:
                break
            tile = machine.step_cycles(pixels, vectors) * steps + machine.tile_cycles(pixels, vectors)
            cycles = sum(-(-width // pixels) * tile / width for width in widths) / vectors
            if best is None or cycles <= best[0]:
                best = (cycles, pixels, vectors)
    assert best is not None  # noqa: S101 - one by one always fits
    return best[1], best[2]
