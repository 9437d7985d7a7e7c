"""Taps of a window that lie beside the image for a whole tile of results are left out.

With a dilation as wide as the image (12 to 36 pixels of 32, as atrous pyramids have them) most taps read nothing but
zeros: of three taps along an axis, results far from both edges have one. A tile asks before each tap, so the copy of
the image needs zeros only where a tile lies across its edge.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from forge_pipeline.codegen.tir import rewriting
from forge_pipeline.codegen.tir.edge_tiles import Window

TAP = "forge.tap"
"""The annotation of a loop over taps: the axis of the block along which results go, how many a tile has of them, and
those of `Window`."""


def share(window: Window, results: int, tile: int) -> float:
    """Return which part of its taps a tile of ``tile`` results reads, on average over the tiles of an axis."""
    starts = range(0, results, tile)
    seen = sum(_overlaps(window, start, tap, tile) for start in starts for tap in range(window.taps))
    return seen / (len(starts) * window.taps)


def _overlaps(window: Window, first: int, tap: int, tile: int) -> bool:
    at = first * window.stride - window.before + tap * window.dilation
    return at + (tile - 1) * window.stride >= 0 and at < window.size


def mark(sch: Schedule, loop: LoopRV, axis: int, window: Window, tile: int) -> None:
    """Mark a loop over the taps of ``window``, inside of which the block's ``axis`` counts a tile's results."""
    sch.annotate(loop, TAP, [axis, tile, *window.numbers])


def skip(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel whose marked loops pass over the taps that read nothing of the image."""

    def ask(loop: tirx.For, mutator: Any) -> Any:
        inner = mutator.default_mutate(loop)
        if TAP not in loop.annotations:
            return inner
        axis, tile = (int(number) for number in loop.annotations[TAP][:2])
        window = Window.of(loop.annotations[TAP][2:])
        result = rewriting.realizes(inner)[0].iter_values[axis]
        first = rewriting.at_zero(result, [below.loop_var for below in rewriting.loops(inner.body)])
        at = first * window.stride + inner.loop_var * window.dilation - window.before
        is_seen = tirx.all(at >= -(tile - 1) * window.stride, at < window.size)
        notes = {name: note for name, note in inner.annotations.items() if name != TAP}
        body = tirx.IfThenElse(is_seen, inner.body, None)
        return tirx.For(inner.loop_var, inner.min, inner.extent, inner.kind, body, annotations=notes)

    return function.with_body(tvm_ffi.structural_mutate(function.body, [(tirx.For, ask)]))
