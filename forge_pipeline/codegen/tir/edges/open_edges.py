"""`edge_tiles` for images whose height and width are known only when a kernel runs.

A row has three parts: its first tile; tiles up to where the last one begins, none of which reads outside, so that one
may be moved back; and its last tile, moved back to end with the row. What is computed twice comes to the same. Rows
that read above or below the image, and those whose windows are too wide for that, have tiles with a test for each
pixel.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize, Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.sym.analyzer import Analyzer

from forge_pipeline.codegen.tir import rewriting
from forge_pipeline.codegen.tir.edges import tail_tiles
from forge_pipeline.codegen.tir.edges.edge_tiles import (
    WINDOW,
    Window,
    anchor_of,
    decided,
    shortened,
    split_rows,
    with_own_registers,
)

ROWS = "forge.open_rows"
"""The annotation of a loop over rows of results: the axes of an image, then of a window's rows `Window`'s before,
stride, taps and dilation."""

TILES = "forge.open_tiles"
"""The annotation of a loop over the tiles of a row: their pixels, then likewise of a window's columns."""


def fits(columns: Window, tile: int) -> bool:
    """Return whether all that reads before a row is in its first tile."""
    return columns.before <= tile * columns.stride


def mark(
    sch: Schedule, block: SBlockRV, over_rows: LoopRV, over_tiles: LoopRV, *, axes: tuple[int, int, int],
    rows: Window, columns: Window, tile: int,
) -> None:  # fmt: skip
    """Mark a block whose tiles at the edges are to be code of their own, and the loops around it.

    ``axes`` are the block's axes of rows, of columns and of a window's rows.
    """
    sch.annotate(block, WINDOW, [*axes, rows.size, rows.before, rows.stride, rows.taps, rows.dilation])
    sch.annotate(over_rows, ROWS, [rows.before, rows.stride, rows.taps, rows.dilation])
    sch.annotate(over_tiles, TILES, [tile, columns.before, columns.stride, columns.taps, columns.dilation])


def specialize(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel whose marked loops have a copy of their tile for each edge.

    Its first tiles are marked for `tail_tiles`, which sees to images that are narrower.
    """
    return split_rows(function, ROWS, _rows)


def _rows(loop: tirx.For, buffers: list[Any]) -> Any:
    """Return the tiles of a row, others where it is at an edge."""
    anchor = anchor_of(loop)
    axes = [int(axis) for axis in anchor.block.annotations[WINDOW][:2]]
    _sums, image, *_ = (part.source for part in anchor.block.reads)
    (over_tiles,) = (inner for inner in rewriting.loops(loop) if TILES in inner.annotations)
    row, columns = anchor.iter_values[axes[0]], anchor.block.iter_vars[axes[1]].dom.extent
    window = _window(loop.annotations[ROWS], image.ty.shape[axes[0]])
    first, stop = window.inside(anchor.block.iter_vars[axes[0]].dom.extent)
    regular, tiles = _row(over_tiles, columns, image.ty.shape[axes[1]], buffers)
    result = tirx.IfThenElse(
        tirx.all(row >= first, row < stop, regular), tiles, _tested(over_tiles, row, window, buffers)
    )
    for condition in _conditions(over_tiles):
        result = tirx.IfThenElse(condition, result, None)
    return result


def _window(numbers: Any, size: Any) -> Window:
    before, stride, taps, dilation = (int(number) for number in numbers)
    return Window(size=size, before=before, stride=stride, taps=taps, dilation=dilation)


def _conditions(loop: tirx.For) -> list[Any]:
    """Return the conditions of a tile that are those of its row."""
    own = [loop.loop_var, *(inner.loop_var for inner in rewriting.loops(loop.body))]
    found = {
        str(condition): condition
        for realize in rewriting.realizes(loop.body)
        for condition in rewriting.conjuncts(realize.predicate)
        if not any(rewriting.reads(condition, variable) for variable in own)
    }
    return list(found.values())


def _row(loop: tirx.For, columns: Any, width: Any, buffers: list[Any]) -> tuple[Any, Any]:
    """Return when the three parts are all of a row that reads nothing above or below the image, and their tiles."""
    tile, *window = (int(number) for number in loop.annotations[TILES])
    first, stop = _window(window, width).inside(columns)
    has_middle = stop >= first + tile
    none = tirx.const(0, loop.loop_var.ty.dtype)
    count = tirx.Select(has_middle, tirx.max(none, tirx.floordiv(columns - tile - 1, tile)), none)
    parts = [
        _marked(_part(loop, lambda counter: counter * tile, 1, False, buffers), tile),
        _part(loop, lambda counter: tirx.min((counter + 1) * tile, stop - tile), count, True, buffers),
        _part(loop, lambda _: columns - tile, 1, False, buffers),
    ]
    regular = tirx.all(tirx.any(has_middle, columns <= 2 * tile), columns - stop <= tile)
    return regular, tirx.SeqStmt(parts)


def _tested(loop: tirx.For, row: Any, window: Window, buffers: list[Any]) -> Any:
    """Return the tiles of a row that may, without what they would read there, or of one whose windows are wide."""
    tile = int(loop.annotations[TILES][0])
    part = _part(loop, lambda counter: counter * tile, loop.extent, False, buffers)
    return _marked(tirx.For(part.loop_var, part.min, part.extent, part.kind, shortened(part.body, row, window)), tile)


def _marked(loop: tirx.For, tile: int) -> tirx.For:
    """Return a loop over tiles of which `tail_tiles` moves back the last."""
    notes = {tail_tiles.TILES: tile}
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, annotations=notes)


def _part(loop: tirx.For, start: Any, count: Any, is_inside: bool, buffers: list[Any]) -> tirx.For:
    """Return ``count`` tiles of a row, which begin where ``start`` of their number says."""
    counter = tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype)
    inner = [other.loop_var for other in rewriting.loops(loop.body)]
    analyzer = Analyzer()

    def moved(value: Any) -> Any:
        if not rewriting.reads(value, loop.loop_var):
            return value
        return start(counter) + analyzer.simplify(value - rewriting.at_zero(value, inner))

    def move(realize: SBlockRealize) -> SBlockRealize:
        values = [moved(value) for value in realize.iter_values]
        return decided(SBlockRealize(values, True, realize.block), is_inside=is_inside)

    body = rewriting.map_realizes(loop.body, move)
    body = with_own_registers(body, buffers)
    return tirx.For(counter, tirx.const(0, counter.ty.dtype), count, tirx.ForKind.SERIAL, body)
