"""Windows over an image without a padded copy of it: tiles at the edges are code of their own.

What lies outside of an image is zero. Taps on rows outside are left out: the loop over a window's rows is shorter
there. Taps on columns outside are the same for all rows, of the first and of the last tiles: each of these becomes a
copy of the tile in which every test is of numbers, so that nothing of it is left. The tiles between have no tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call
from tvm.s_tir import SBlockRealize, Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from forge_pipeline.codegen.tir import rewriting

WINDOW = "forge.window"
"""The annotation of a block that reads an image under conditions: its axes of rows, of columns and of a window's rows,
then for rows those of `Window`."""

ROWS = "forge.edge_rows"
"""The annotation of a loop over rows of results: the first that reads nothing outside, and the first after it that
does; for them, the loop over a window's rows stays unrolled."""

TILES = "forge.edge_tiles"
"""The annotation of a loop over the tiles of a row: likewise, of whole tiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Along an axis, result r reads pixels r * ``stride`` - ``before`` + t * ``dilation`` of ``size``, t < ``taps``.

    ``size`` and the number of results may be expressions.
    """

    size: Any
    before: int
    stride: int
    taps: int
    dilation: int

    def inside(self, results: Any) -> tuple[int, Any]:
        """Return the first of ``results`` that reads nothing outside, and the first after it that does."""
        first = -(-self.before // self.stride)
        reach = (self.taps - 1) * self.dilation
        stop = (self.size - 1 - reach + self.before) // self.stride + 1
        if isinstance(self.size, int) and isinstance(results, int):
            first = min(results, first)
            return first, max(first, min(results, stop))
        return first, tirx.max(first, tirx.min(results, stop))

    def bounds(self, result: Any, results: int = 1) -> tuple[Any, Any]:
        """Return the first tap that is inside for one of ``results`` from this one on, and the first after those."""
        at = result * self.stride - self.before
        last = at + (results - 1) * self.stride
        if isinstance(result, int):
            first = max(0, (self.dilation - 1 - last) // self.dilation)
            return first, max(first, min(self.taps, (self.size - 1 - at) // self.dilation + 1))
        first = tirx.max(0, tirx.floordiv(self.dilation - 1 - last, self.dilation))
        return first, tirx.max(first, tirx.min(self.taps, tirx.floordiv(self.size - 1 - at, self.dilation) + 1))


def mark(
    sch: Schedule, block: SBlockRV, over_rows: LoopRV, over_tiles: LoopRV, *, axes: tuple[int, int, int],
    rows: Window, columns: Window, tile: int, unrolls: bool,
) -> None:  # fmt: skip
    """Mark a block whose tiles at the edges are to be code of their own, and the loops around it.

    ``axes`` are the block's axes of rows, of columns and of a window's rows. Tiles have ``tile`` columns; the last may
    have fewer. ``unrolls``: rows that read nothing outside have code of their own too, in which a window's rows are
    unrolled.
    """
    block_loop = {axis: int(sch.get(block).iter_vars[axis].dom.extent) for axis in axes[:2]}
    first, stop = columns.inside(block_loop[axes[1]])
    begin = -(-first // tile)
    sch.annotate(block, WINDOW, [*axes, rows.size, rows.before, rows.stride, rows.taps, rows.dilation])
    sch.annotate(over_rows, ROWS, list(rows.inside(block_loop[axes[0]])) if unrolls else [0, 0])
    sch.annotate(over_tiles, TILES, [begin, max(begin, stop // tile)])


def specialize(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel whose marked loops have a copy of their tile for each edge."""
    return split_rows(function, ROWS, _rows)


def split_rows(function: tirx.PrimFunc, note: str, parts: Callable[[tirx.For, list[Any]], Any]) -> tirx.PrimFunc:
    """Return ``function`` with ``parts`` of each loop over rows that has the annotation ``note`` as the loop's body.

    ``parts`` adds the registers of its copies to the list that it is given.
    """
    buffers: list[Any] = []

    def split(loop: tirx.For, mutator: Any) -> Any:
        if note not in loop.annotations:
            return mutator.default_mutate(loop)
        kept = {name: value for name, value in loop.annotations.items() if name != note}
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, parts(loop, buffers), annotations=kept)

    body = tvm_ffi.structural_mutate(function.body, [(tirx.For, split)])
    return rewriting.with_buffers(function.with_body(body), buffers)


def _rows(loop: tirx.For, buffers: list[Any]) -> Any:
    """Return the tiles of a row, others where it is at an edge."""
    anchor = anchor_of(loop)
    axis = int(anchor.block.annotations[WINDOW][0])
    row, rows = anchor.iter_values[axis], int(anchor.block.iter_vars[axis].dom.extent)
    (over_tiles,) = (inner for inner in rewriting.loops(loop) if TILES in inner.annotations)
    first, stop = (int(place) for place in loop.annotations[ROWS])
    if (first, stop) == (0, rows):
        return _tiles(over_tiles, None, buffers)
    result = _tiles(over_tiles, row, buffers)
    if first == stop:
        return result
    return tirx.IfThenElse(tirx.all(row >= first, row < stop), _tiles(over_tiles, None, buffers), result)


def _tiles(loop: tirx.For, row: Any, buffers: list[Any]) -> Any:
    """Return the tiles of a row: of one that may read what is outside, or (None) of those that do not."""
    begin, end = (int(place) for place in loop.annotations[TILES])
    parts = [_part(loop, row, tile, 1, buffers) for tile in range(begin)]
    if end > begin:
        parts.append(_part(loop, row, begin, end - begin, buffers))
    parts += [_part(loop, row, tile, 1, buffers) for tile in range(end, int(loop.extent))]
    return tirx.SeqStmt(parts) if len(parts) > 1 else parts[0]


def _part(loop: tirx.For, row: Any, first: int, count: int, buffers: list[Any]) -> Any:
    """Return ``count`` tiles of a row, from ``first``; several are all inside of it."""
    begin, end = (int(place) for place in loop.annotations[TILES])
    is_inside = begin <= first < end
    body = rewriting.map_realizes(loop.body, lambda realize: decided(realize, is_inside=is_inside))
    if row is not None:
        body = shortened(body, row, _window_of(body))
    counter = tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype)
    place = counter + first if count > 1 else tirx.const(first, loop.loop_var.ty.dtype)
    body = rewriting.substitute(body, lambda seen: place if seen.same_as(loop.loop_var) else None)
    body = with_own_registers(body, buffers)
    return tirx.For(counter, 0, count, tirx.ForKind.SERIAL, body) if count > 1 else body


def decided(realize: SBlockRealize, *, is_inside: bool) -> SBlockRealize:
    """Return a block without conditions on rows, and, of tiles that are inside of a row, on columns."""
    old, predicate = realize.block, True if is_inside else realize.predicate
    if WINDOW not in old.annotations:
        return SBlockRealize(realize.iter_values, predicate, old)
    rows, columns = (old.iter_vars[int(axis)].var for axis in old.annotations[WINDOW][:2])

    def decided(call: Call, mutator: Any) -> Any:
        if str(getattr(call.op, "name", "")) != rewriting.CHOICE:
            return mutator.default_mutate(call)
        conditions = [
            marked.args[0] if isinstance(marked, Call) else marked  # what TVM's partitioning looks for
            for marked in rewriting.conjuncts(call.args[0])
        ]
        dropped = (rows, columns) if is_inside else (rows,)
        kept = [item for item in conditions if not any(rewriting.reads(item, axis) for axis in dropped)]
        if not kept:
            return call.args[1]
        return tirx.if_then_else(tirx.all(*kept) if len(kept) > 1 else kept[0], call.args[1], call.args[2])

    content = tvm_ffi.structural_mutate(old.body, [(Call, decided)])
    block = s_tir.SBlock(
        old.iter_vars, old.reads, old.writes, old.name_hint, content, annotations=dict(old.annotations)
    )
    return SBlockRealize(realize.iter_values, predicate, block)


def _window_of(body: Any) -> Window:
    """Return what a tile's sums read along an image's height."""
    numbers = anchor_of(body).block.annotations[WINDOW]
    size, before, stride, taps, dilation = (int(number) for number in numbers[3:])
    return Window(size=size, before=before, stride=stride, taps=taps, dilation=dilation)


def anchor_of(body: Any) -> SBlockRealize:
    """Return the block that adds up what windows hold."""
    return [item for item in rewriting.realizes(body) if WINDOW in item.block.annotations][-1]


def shortened(body: Any, row: Any, window: Window) -> Any:
    """Return a tile whose loop over a window's rows leaves out those outside of the image."""
    anchor, (first, stop) = anchor_of(body), window.bounds(row)
    over_rows = anchor.iter_values[int(anchor.block.annotations[WINDOW][2])]

    def shorten(loop: tirx.For, mutator: Any) -> Any:
        if not loop.loop_var.same_as(over_rows):
            return mutator.default_mutate(loop)
        counter = tirx.Var(loop.loop_var.name, loop.loop_var.ty.dtype)
        inner = rewriting.substitute(loop.body, lambda seen: first + counter if seen.same_as(loop.loop_var) else None)
        return tirx.For(counter, 0, stop - first, tirx.ForKind.SERIAL, inner)

    return tvm_ffi.structural_mutate(body, [(tirx.For, shorten)])


def with_own_registers(tree: Any, buffers: list[Any]) -> Any:
    """Return a copy of ``tree`` with registers of its own, which ``buffers`` gets."""
    copy = rewriting.clone(tree, _registers(tree))
    buffers += _registers(copy)
    return copy


def _registers(tree: Any) -> Sequence[Any]:
    """Return the buffers that blocks keep in registers."""
    found: list[Any] = []
    for realize in rewriting.realizes(tree):
        for region in realize.block.writes:
            if region.source.scope() == "local" and not any(region.source.same_as(other) for other in found):
                found.append(region.source)
    return found
