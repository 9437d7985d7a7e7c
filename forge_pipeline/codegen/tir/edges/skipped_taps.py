"""Taps of a window that lie beside the image for a whole tile of results are left out.

With a dilation as wide as the image (12 to 36 pixels of 32, as atrous pyramids have them) most taps read nothing but
zeros: of three taps along an axis, results far from both edges have one. A tile asks before each tap, so the copy of
the image needs zeros only where a tile lies across its edge. Loops over the others alone, as `edge_tiles` has them for
small windows, took up to a quarter longer here (measured on a Sapphire Rapids).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from forge_pipeline.codegen.tir import rewriting
from forge_pipeline.codegen.tir.edges.edge_tiles import Window

WINDOWS = "forge.windows"
"""The annotation of a block of sums over windows, (n, channel, row, column, ...), that reads an image of these axes or
of one more: for rows and columns ``before``, ``stride`` and ``dilation`` of `Window`, and how many zeros there are
around the image that it reads."""

TAP = "forge.tap"
"""The annotation of a loop over taps: the axis of the block along which results go, how many a tile has of them, and
the numbers of `WINDOWS`."""

ROW, COLUMN = 2, 3


def share(window: Window, results: int, tile: int) -> float:
    """Return which part of its taps a tile of ``tile`` results reads, on average over the tiles of an axis."""
    starts = range(0, results, tile)
    seen = sum(stop - first for first, stop in (window.bounds(start, tile) for start in starts))
    return float(seen) / (len(starts) * window.taps)


def mark(sch: Schedule, block: SBlockRV, taps: Sequence[LoopRV], pixels: int) -> None:
    """Mark the loops over rows and columns of a window, of a block that has `WINDOWS`; tiles are ``pixels`` wide."""
    numbers = [int(number) for number in dict(sch.get(block).annotations).get(WINDOWS, ())]
    if numbers:
        sch.annotate(taps[0], TAP, [ROW, 1, *numbers[:4]])
        sch.annotate(taps[1], TAP, [COLUMN, pixels, *numbers[4:]])


def skip(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel whose marked loops pass over the taps that read nothing of the image."""

    def ask(loop: tirx.For, mutator: Any) -> Any:
        inner = mutator.default_mutate(loop)
        if TAP not in loop.annotations:
            return inner
        axis, tile, before, stride, dilation, around = (int(number) for number in loop.annotations[TAP])
        realize = rewriting.realizes(inner)[0]
        first = rewriting.at_zero(realize.iter_values[axis], [each.loop_var for each in rewriting.loops(inner.body)])
        at = first * stride + inner.loop_var * dilation - before
        is_seen = tirx.all(at >= -(tile - 1) * stride, at < _read_by(realize.block).ty.shape[axis] - around)
        notes = {name: note for name, note in inner.annotations.items() if name != TAP}
        body = tirx.IfThenElse(is_seen, inner.body, None)
        return tirx.For(inner.loop_var, inner.min, inner.extent, inner.kind, body, annotations=notes)

    return function.with_body(tvm_ffi.structural_mutate(function.body, [(tirx.For, ask)]))


def _read_by(block: SBlock) -> Any:
    """Return the image that sums are of: what is read besides them and besides weights, which have an axis more."""
    sums = block.writes[0].source
    others = [region.source for region in block.reads if not region.source.same_as(sums)]
    return min(others, key=lambda source: len(source.ty.shape))
