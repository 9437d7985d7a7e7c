"""softmax(q k + mask) v in tiles of bfloat16: a block of rows at a time, whose scores stay in the cache.

The loops are those of `float32.products.attention`. Queries, keys and values are rounded and laid out as tiles first;
scores leave the tile registers a panel at a time, and shares are the tiles that the second product reads as they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from forge_pipeline.codegen.amx import operands
from forge_pipeline.codegen.amx.configuration import TILES
from forge_pipeline.codegen.amx.operands import WORDS_OF_PAIRS
from forge_pipeline.codegen.amx.rows import TILE
from forge_pipeline.codegen.amx.tiles import LANES, ROWS, WORDS
from forge_pipeline.codegen.float32.products import attention
from forge_pipeline.codegen.float32.products.attention import CHAIN, PANEL_VECTORS, Blocks
from forge_pipeline.codegen.float32.products.open_matmul import PANELS
from forge_pipeline.codegen.tir import bfloat16_pairs, primitives
from forge_pipeline.codegen.tir.broadcasting import is_one
from forge_pipeline.codegen.tir.machine import Machine

NAME: Final = "attention_amx"
WIDTH: Final = PANEL_VECTORS * LANES
"""Columns of a panel of keys."""
STEPS: Final = 2 * WORDS
"""Steps of a tile: pairs of one and the one that many words behind it."""
LINES: Final = "lines"
FEWEST_ROWS, FEWEST_COLUMNS = 32, 64
"""From which on tiles take less time than vectors: 0.5 to 0.8 of it, and 1.06 at 48 columns (measured)."""


def is_worth(machine: Machine, rows: Any, depth: Any, columns: Any) -> bool:
    """Return whether the CPU has tiles, and all extents are known and fill enough of them."""
    if not (machine.amx and machine.pairs) or machine.lanes != LANES:
        return False
    if not all(isinstance(extent, int) for extent in (rows, depth, columns)):
        return False
    return bool(rows >= FEWEST_ROWS and columns >= FEWEST_COLUMNS)


def attend(
    query: te.Tensor, keys: te.Tensor, values: te.Tensor, *terms: te.Tensor,
    steps: Sequence[tuple[str, float | None]], zero_for_nan: bool,
) -> te.Tensor:  # fmt: skip
    """Describe attention of (..., rows, depth) over (..., depth, columns) and ``values_in_tiles``.

    The rest is as in ``attention.attend``; the result, (..., blocks, groups of columns, rows, tiles, lanes), is for
    ``crop``.
    """
    blocks = Blocks(shape=query.shape, tile=TILE, in_tiles=True)
    depth, columns = int(query.shape[-1]), keys.shape[-1]
    whole, chunks, places = blocks.whole, -(-depth // STEPS), int(values.shape[-3])
    *outside, rows = blocks.extents

    def both(read: Any, chunk: Any, word: Any) -> Any:
        first, second = (_within(read, chunk * STEPS + word + place, depth) for place in (0, WORDS))
        return bfloat16_pairs.pair(first, second)

    def line(*at: Any) -> Any:
        *batch, block, chunk, row, word = at
        return both(lambda step: query(*whole(batch), blocks.row(block, row), step), chunk, word)

    def packed(*at: Any) -> Any:
        *batch, panel, chunk, vector, word, lane = at
        column = panel * WIDTH + vector * LANES + lane
        column = column if int(columns) % WIDTH == 0 else tirx.min(column, columns - 1)
        return both(lambda step: keys(*whole(batch), step, column), chunk, word)

    count = attention.panels_of(columns, LANES)
    lines = te.compute((*outside, chunks, rows, WORDS), line, name=LINES)
    panels = te.compute(
        (*blocks.batches, count, chunks, PANEL_VECTORS, WORDS, LANES), packed, name=PANELS
    )  # fmt: skip
    chunk, word = te.reduce_axis((0, chunks), "chunk"), te.reduce_axis((0, WORDS), "word")

    def product(*at: Any) -> Any:
        *batch, block, panel, row, vector, lane = at
        number = lines(*batch, block, chunk, row, word)
        return te.sum(
            bfloat16_pairs.dot(number, panels(*batch, panel, chunk, vector, word, lane)), axis=[chunk, word]
        )  # fmt: skip

    scores = te.compute(
        (*outside, count, rows, PANEL_VECTORS, LANES), product, name="scores", attrs={primitives.FAMILY: NAME}
    )
    shares = attention.weigh(scores, *terms, blocks=blocks, columns=columns, steps=steps, is_paired=True)
    panel, each = te.reduce_axis((0, count), "panel"), te.reduce_axis((0, WORDS), "each")
    nr = 2 - places % 2  # tiles of values beside each other

    def mix(*at: Any) -> Any:
        *batch, block, group, row, beside, lane = at
        value = values(*whole(batch), panel, group * nr + beside, each, lane)
        return te.sum(bfloat16_pairs.dot(shares(*batch, block, panel, row, each), value), axis=[panel, each])

    mixed = te.compute((*outside, places // nr, rows, nr, LANES), mix, name="mixed")
    return attention.divide(mixed, shares, blocks, zero_for_nan=zero_for_nan)


def crop(tiles: te.Tensor, shape: Sequence[Any]) -> te.Tensor:
    """Describe the rows of ``attend``'s result as ``shape``, (..., rows, width)."""
    nr = int(tiles.shape[-2])

    def element(*at: Any) -> Any:
        *batch, row, lane = at
        batches = [index for index, extent in zip(batch, shape, strict=False) if not is_one(extent)]
        place = (lane // (nr * LANES), row % TILE, lane // LANES % nr, lane % LANES)
        return tiles(*batches, row // TILE, *place)

    return te.compute(tuple(shape), element, name="crop")


def values_in_tiles(values: te.Tensor) -> te.Tensor:
    """Describe (..., columns, width) as tiles (..., panels, blocks, 16, 16) of pairs, those of a panel's vectors."""
    columns = values.shape[-2]

    def element(*at: Any) -> Any:
        *batch, panel, block, word, lane = at
        rows = (panel * WIDTH + vector * LANES + word for vector in range(PANEL_VECTORS))
        rows = (row if int(columns) % WIDTH == 0 else tirx.min(row, columns - 1) for row in rows)
        return bfloat16_pairs.pair(*(values(*batch, row, block * LANES + lane) for row in rows))

    shape = (attention.panels_of(columns, LANES), values.shape[-1] // LANES, WORDS, LANES)
    return te.compute((*values.shape[:-2], *shape), element, name="pair")


def _within(read: Any, step: Any, depth: int) -> Any:
    return read(step) if depth % STEPS == 0 else tirx.if_then_else(step < depth, read(step), tirx.const(0, "float32"))


def schedule(sch: Schedule, machine: Machine) -> None:
    """Compute all that a block of rows needs, one block after the other."""
    anchor = primitives.find(sch, NAME)
    named = {str(sch.get(block).name_hint): block for block in primitives.blocks(sch)}
    _pack(sch, named[PANELS])
    *batches, block, panel, row, vector, lane, chunk, word = sch.get_loops(anchor)
    work = primitives.product(primitives.extents(sch, anchor))
    sch.reorder(*batches, block, panel, chunk, row, vector, lane, word)
    shared = primitives.fuse(sch, [*batches, block])
    sch.set_scope(anchor, 0, "local")
    stored = sch.cache_write(anchor, 0, "local")
    sch.reverse_compute_at(stored, panel, preserve_unit_loops=True)
    sch.reverse_compute_at(named["row"], panel)
    for name in CHAIN:
        sch.reverse_compute_at(named[name], shared, preserve_unit_loops=True)
    sch.compute_at(named[LINES], shared)
    primitives.parallel_if_worth(sch, shared, work)
    sch.annotate(shared, TILES, 1)
    _mix(sch, named["mixed"])
    attention.schedule_shares(sch, named, machine)
    for name in (LINES, "attention"):
        sch.vectorize(sch.get_loops(named[name])[-1])
    _tensorize(sch, anchor, chunk, stored, PANEL_VECTORS)


def _pack(sch: Schedule, panels: SBlockRV) -> None:
    *outer, _, _, _, lane = sch.get_loops(panels)
    work = primitives.product(primitives.extents(sch, panels))
    sch.vectorize(lane)
    primitives.parallel_if_worth(sch, primitives.fuse(sch, outer), work)


def _mix(sch: Schedule, mixed: SBlockRV) -> None:
    """Multiply a block's shares by the values, two tiles of these beside each other where their number is even."""
    group, row, beside, lane, panel, each = sch.get_loops(mixed)[-6:]
    nr = primitives.static(sch, beside)
    sch.set_scope(mixed, 0, "local")
    stored = sch.cache_write(mixed, 0, "local")
    columns = [beside, lane] if nr > 1 else [sch.fuse(beside, lane)]
    sch.reorder(group, panel, row, *columns, each)
    sch.reverse_compute_at(stored, group, preserve_unit_loops=True)
    _tensorize(sch, mixed, panel, stored, nr)


def _tensorize(sch: Schedule, sums: SBlockRV, steps: Any, stored: SBlockRV, nr: int) -> None:
    of, rows, depth = WORDS_OF_PAIRS, TILE // ROWS, 2 if nr > 1 else 1
    zeros = sch.decompose_reduction(sums, steps)
    sch.tensorize(sch.get_loops(sums)[-2 - depth], operands.add_products(of, rows, nr))
    sch.tensorize(sch.get_loops(zeros)[-1 - depth], operands.clear(of, rows, nr))
    if nr == 1:
        *_, beside, lane = sch.get_loops(stored)
        sch.fuse(beside, lane)
    sch.tensorize(sch.get_loops(stored)[-1 - depth], operands.store(of, rows, nr))
