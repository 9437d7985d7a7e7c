"""Convolutions over images whose height and width are known only when they run.

The templates are those of `direct` and `depthwise`. Pixels of a pointwise convolution are one row (`flatten_pixels`);
the last tile of a row is moved back to end with it (`tail_tiles`). A row block is computed from a padded copy of what
it reads.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat
from typing import Any

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.float32.conv.plan import is_pointwise
from forge_pipeline.codegen.layout.typical_extents import UNKNOWN, Typical
from forge_pipeline.codegen.tir import primitives, row_blocks
from forge_pipeline.codegen.tir.edges import open_edges, skipped_taps
from forge_pipeline.codegen.tir.edges.edge_tiles import Window
from forge_pipeline.codegen.tir.edges.tail_tiles import TILES, is_narrow, most_pixels, split_blocks, tiles_of_block
from forge_pipeline.codegen.tir.elementwise_blocks import pad_at, schedule_elementwise
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.codegen.tir.prefetch.pixels import ask_for_pixels
from forge_pipeline.codegen.tir.prefetch.weights import ask_for_next

WIDTHS = (10, 20, 40, 80, 160)
"""Pixels of the rows for which tiles are chosen: those of a detector's feature maps."""

ROW_BLOCK = 8
"""Rows that are computed from one padded copy, at most."""

FEW_ROWS = 4
"""Rows that a thread computes at once where there is no copy, at most: an image of seven has work for two. SegFormer on
two threads took 0.94 of its time with eight rows, and as long with two (Zen 4)."""

FEWEST_TILES = 3
"""Whole tiles that ask for all of the next weights: of 14 in 49 pixels, the last images of most classifiers. Asking for
all in one tile, MobileNetV2 took 1.20 of the time by AVX2, whose steps are short (1.00 by AVX-512)."""

DEPTHWISE_PIXELS = 8
"""Pixels of a tile of a depthwise convolution: as many sums side by side as hide the latency of the additions."""

MOST_CODE = 1024
"""Multiply-adds in a tile's code at most, above which a depthwise window's rows are a loop."""


def typical(geometry: Geometry, known: Typical = UNKNOWN) -> list[Geometry]:
    """Return an image's geometry for each of the sizes that open extents are taken for; itself where it has none.

    Those are ``known`` by name, all of them, or else WIDTHS.
    """
    if geometry.is_static:
        return [geometry]
    extents: tuple[Any, ...] = geometry.size
    names = [None if isinstance(extent, int) else getattr(extent, "name", "") for extent in extents]
    is_known = all(name is None or name in known for name in names)
    sides = [
        repeat(extent) if name is None else known[name] if is_known else WIDTHS
        for extent, name in zip(extents, names, strict=True)
    ]
    return [replace(geometry, size=size) for size in zip(*sides, strict=False)]


def schedule_pointwise(sch: Schedule, machine: Machine, anchor: SBlockRV) -> None:
    """Compute all filters from a block of pixels that stays in the second cache, then the next."""
    before, last = primitives.split_around(sch, anchor)
    for block in before:
        schedule_elementwise(sch, block, machine)
    n, oc, h, w, out, *reduction = sch.get_loops(anchor)
    oc_blocks, lanes = (primitives.static(sch, loop) for loop in (oc, out))
    steps = primitives.product(primitives.static(sch, loop) for loop in reduction)
    pixels, vectors = _tile(sch, machine, oc_blocks, steps, widths=(primitives.UNKNOWN**2,))
    tiles = tiles_of_block(machine, 4 * steps * pixels, [primitives.extent(sch, n), oc_blocks // vectors])
    oc_out, oc_in = sch.split(oc, [None, vectors])
    row_block, w_out, w_in = split_blocks(sch, w, tiles, pixels)
    if pixels > 1:
        sch.annotate(w_out, TILES, pixels)
    sch.reorder(n, h, row_block, oc_out, w_out, *reduction, w_in, oc_in, out)
    if not is_narrow(sch):
        ask_for_next(sch, w_out, machine, min(tiles, FEWEST_TILES), shared=True)
        ask_for_pixels(sch, reduction[0], machine)
    shared = primitives.fuse(sch, [n, h, row_block, oc_out])
    sch.reverse_compute_at(last, w_out)
    primitives.parallel_if_worth(sch, shared, oc_blocks * lanes * primitives.UNKNOWN**2 * steps)
    sch.vectorize(out)
    primitives.unroll_tile(sch, anchor, last, reduction[0], (w_in, oc_in), below=2, lanes=lanes)


def schedule_direct(sch: Schedule, machine: Machine, anchor: SBlockRV) -> None:
    """Hold a tile of pixels by filters in registers along the reduction."""
    before, last = primitives.split_around(sch, anchor)
    n, oc, h, w, out, *reduction = sch.get_loops(anchor)
    oc_blocks, lanes = (primitives.static(sch, loop) for loop in (oc, out))
    steps = primitives.product(primitives.static(sch, loop) for loop in reduction)
    pixels, vectors = _tile(sch, machine, oc_blocks, steps, widths=WIDTHS)
    taps, is_turned = reduction[1:3], primitives.extent(sch, w) == 1
    reduction = primitives.taps_along_first(sch, w, reduction)
    h, w = primitives.rows_and_columns(sch, h, w)
    oc_out, oc_in = sch.split(oc, [None, vectors])
    is_padded = any(primitives.family_of(sch, block) == primitives.PAD for block in before)
    copies_rows = is_padded and 4 * oc_blocks * lanes * steps <= machine.l2  # else the image is small, and copied whole
    rows = ROW_BLOCK if is_padded else FEW_ROWS
    row_block, h_in = sch.split(h, [None, min(rows, primitives.extent(sch, h) or rows)])
    w_out, w_in = sch.split(w, [None, pixels])
    if pixels > 1:
        sch.annotate(w_out, TILES, pixels)
    sch.reorder(n, row_block, oc_out, h_in, w_out, *reduction, w_in, oc_in, out)
    if not is_turned:
        skipped_taps.mark(sch, anchor, taps, pixels)
    sch.reverse_compute_at(last, w_out)
    work = oc_blocks * lanes * primitives.UNKNOWN**2 * steps
    row_blocks.share(sch, row_block, rows, machine, work=work, inside=[] if copies_rows else [oc_out])
    copies_part = skipped_taps.WINDOWS not in sch.get(anchor).annotations
    pad_at(sch, before, row_block if copies_rows and copies_part else None, machine)
    sch.vectorize(out)
    primitives.unroll_tile(sch, anchor, last, reduction[0], (w_in, oc_in), below=5, lanes=lanes)


def schedule_depthwise(
    sch: Schedule, machine: Machine, anchor: SBlockRV, windows: tuple[Window, Window] | None
) -> None:
    """A lane for each channel, a tile of pixels at a time; those at the edges of an image are code of their own."""
    before, last = primitives.split_around(sch, anchor)
    n, block, h, w, lane, kernel_h, kernel_w = sch.get_loops(anchor)
    blocks, lanes = (primitives.static(sch, loop) for loop in (block, lane))
    taps = primitives.static(sch, kernel_h) * primitives.static(sch, kernel_w)
    most = min(DEPTHWISE_PIXELS, machine.registers // 2)
    pixels = most_pixels(sch, most)
    is_turned = primitives.extent(sch, w) == 1  # its height is its one row
    h, w = primitives.rows_and_columns(sch, h, w)
    unrolls = taps * pixels <= MOST_CODE
    if pixels < most or not unrolls or is_turned or (windows is not None and not open_edges.fits(windows[1], pixels)):
        windows = None  # a padded copy is read
    row_block, h_in = sch.split(h, [None, min(ROW_BLOCK, primitives.extent(sch, h) or ROW_BLOCK)])
    w_out, w_in = sch.split(w, [None, pixels])
    sch.reorder(n, block, row_block, h_in, w_out, kernel_h, kernel_w, w_in, lane)
    shared = primitives.fuse(sch, [n, block, row_block])
    sch.reverse_compute_at(last, w_out)
    primitives.parallel_if_worth(sch, shared, blocks * lanes * primitives.UNKNOWN**2 * taps)
    for producer in before:
        if windows is not None and primitives.family_of(sch, producer) == primitives.PAD:
            sch.compute_inline(producer)
        else:
            sch.compute_at(producer, shared)
            sch.vectorize(sch.get_loops(producer)[-1])
    if windows is not None:
        rows, columns = windows
        open_edges.mark(sch, anchor, h_in, w_out, axes=(2, 3, 5), rows=rows, columns=columns, tile=pixels)
    elif pixels > 1:
        sch.annotate(w_out, TILES, pixels)
    sch.vectorize(lane)
    taps_in = (kernel_h, kernel_w) if unrolls else (kernel_w,)
    primitives.unroll_tile(sch, anchor, last, kernel_h, (w_in, *taps_in), below=3, lanes=lanes)


def _tile(sch: Schedule, machine: Machine, oc_blocks: int, steps: int, *, widths: tuple[int, ...]) -> tuple[int, int]:
    """Return `typical_tile`, of few pixels where there is less than a tile."""
    return typical_tile(machine, oc_blocks, steps, widths=widths, most=most_pixels(sch, machine.registers))


def typical_tile(
    machine: Machine, oc_blocks: int, steps: int, *, widths: tuple[int, ...], most: int | None = None
) -> tuple[int, int]:
    """Return pixels and vectors of the tile that takes the fewest cycles for a pixel, on average over ``widths``."""
    return _best_tile(machine, oc_blocks, steps, widths, most)[1:]


def stored_blocks(machine: Machine, geometry: Geometry) -> int:
    """Return of how many vectors of filters weights are stored: of one more than there are where tiles gain by it."""
    blocks = -(-geometry.filters // machine.lanes)
    if geometry.groups > 1:
        return blocks
    widths = (primitives.UNKNOWN**2,) if is_pointwise(geometry) else WIDTHS
    counts = (blocks, blocks + 1)
    return min(counts, key=lambda count: count * _best_tile(machine, count, geometry.steps, widths)[0])


def _best_tile(
    machine: Machine, oc_blocks: int, steps: int, widths: tuple[int, ...], most: int | None = None
) -> tuple[float, int, int]:
    """Return the cycles of a pixel and a vector, and the tile's pixels and vectors."""
    best: tuple[float, int, int] | None = None
    for vectors in (nr for nr in (1, 2, 3, 4) if oc_blocks % nr == 0):
        for pixels in range(1, (most or machine.registers) + 1):
            pairs = pixels if machine.has_fma_by_element else 0  # activations of two steps, which LLVM loads at once
            if not machine.fits(pixels, vectors) or pixels * vectors + vectors + 2 * pairs > machine.registers:
                break
            tile = machine.step_cycles(pixels, vectors) * steps + machine.tile_cycles(pixels, vectors)
            cycles = sum(-(-width // pixels) * tile / width for width in widths) / vectors
            if best is None or cycles <= best[0]:
                best = (cycles, pixels, vectors)
    assert best is not None  # noqa: S101 - one by one always fits
    return best
