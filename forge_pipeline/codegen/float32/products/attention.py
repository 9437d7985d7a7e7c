"""softmax(q k + mask) v for a few rows of q at a time: their scores stay in the cache (docs/codegen.md).

The keys are packed into panels of whole vectors, the last of which is filled with zeros; its scores are -infinity, and
it reads the last row of the values again, times zero. Rows are computed in tiles, the last of which repeats the last
row where there are no more: no test inside. Powers are added up as they are, and the sums divided at the end (Dao et
al., "FlashAttention", 2022; a row's scores fit into the cache here, so that no maximum has to be corrected).

Where the query is pairs of bfloat16, both products are of pairs: of a step and the one half of them behind it, and of a
panel's column and the one a vector behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from forge_pipeline.codegen.float32.products.open_matmul import PANELS, STEPS, choose_rows, schedule_packing
from forge_pipeline.codegen.tir import bfloat16_pairs, primitives
from forge_pipeline.codegen.tir.broadcasting import is_one
from forge_pipeline.codegen.tir.lane_reduction import reduce_in_lanes
from forge_pipeline.codegen.tir.machine import Machine, divisors
from forge_pipeline.codegen.tir.math import short_math

NAME = "attention"
PANEL_VECTORS = 2
"""Vectors in a panel of keys."""

FEW = 6
"""Rows from which on a product is taken for scores."""


def tile_rows(machine: Machine, rows: Any, depth: Any) -> int:
    """Return how many rows are computed at once."""
    known = rows if isinstance(rows, int) else None
    return choose_rows(machine, PANEL_VECTORS, depth if isinstance(depth, int) else STEPS, known)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The rows of a query of ``shape`` (..., rows, depth), in blocks of ``tile``; the last repeats the last row.

    ``batches`` are its axes before rows without those of one element, as TVM knows no block by an axis of one.
    """

    shape: Sequence[Any]
    tile: int
    in_tiles: bool = False

    def by_row(self, at: Sequence[Any]) -> Sequence[Any]:
        """Return a place in a block with its panel behind its row, or that as it is stored: in tiles it is before."""
        if not self.in_tiles:
            return at
        lead = len(self.batches) + 1
        return (*at[:lead], at[lead + 1], at[lead], *at[lead + 2 :])

    @property
    def batches(self) -> list[Any]:
        """The extents that are not one."""
        return [extent for extent in self.shape[:-2] if not is_one(extent)]

    @property
    def extents(self) -> tuple[Any, ...]:
        """Batches, blocks, and rows of a block."""
        return (*self.batches, tirx.floordiv(self.shape[-2] + (self.tile - 1), self.tile), self.tile)

    def whole(self, batch: Sequence[Any]) -> list[Any]:
        """Return the place on all axes before rows."""
        inner = iter(batch)
        return [0 if is_one(extent) else next(inner) for extent in self.shape[:-2]]

    def row(self, block: Any, row: Any) -> Any:
        """Return which row of all a row of a block is."""
        return tirx.min(block * self.tile + row, self.shape[-2] - 1)


def attend(
    query: te.Tensor, keys: te.Tensor, values: te.Tensor, *terms: te.Tensor,
    steps: Sequence[tuple[str, float | None]], zero_for_nan: bool, tile: int, lanes: int,
) -> te.Tensor:  # fmt: skip
    """Describe attention of (..., rows, depth) over (..., depth, columns) and (..., columns, width).

    With a query of pairs (..., rows, depth / 2), as ``matmul.in_pairs`` makes them, values are ``in_pairs``.
    ``steps`` are what is done to scores before the softmax: an operator with its constant, or with the next of
    ``terms``, which broadcasts, and has as many columns as all panels (``fill``). ``zero_for_nan``: a row without a
    column that counts gives zeros. The result has tiles of rows, (..., tiles, tile, width), and no axes of one before.
    """
    blocks, depth = Blocks(shape=query.shape, tile=tile), query.shape[-1]
    columns, width = keys.shape[-1], PANEL_VECTORS * lanes
    is_paired = query.dtype == "int32"
    count, shape, whole = panels_of(columns, lanes), blocks.extents, blocks.whole

    def packed(*at: Any) -> Any:
        *batch, panel, step, lane = at
        column = panel * width + lane
        key = keys(*whole(batch), step, column)
        if is_paired:
            key = bfloat16_pairs.pair(key, keys(*whole(batch), step + depth, column))
        return tirx.if_then_else(column < columns, key, tirx.const(0, query.dtype))

    def multiplied(one: Any, other: Any) -> Any:
        return bfloat16_pairs.dot(one, other) if is_paired else one * other

    panels = te.compute((*blocks.batches, count, depth, width), packed, name=PANELS)
    step = te.reduce_axis((0, depth), "step")

    def product(*at: Any) -> Any:
        *batch, block, row, panel, vector, lane = at
        number = query(*whole(batch), blocks.row(block, row), step)
        return te.sum(multiplied(number, panels(*batch, panel, step, vector * lanes + lane)), axis=[step])

    scores = te.compute((*shape, count, PANEL_VECTORS, lanes), product, name="scores", attrs={primitives.FAMILY: NAME})
    shares = weigh(scores, *terms, blocks=blocks, columns=columns, steps=steps, is_paired=is_paired)
    each = [te.reduce_axis((0, extent), "each") for extent in shares.shape[len(shape) :]]

    def mix(*at: Any) -> Any:
        place = each
        if not is_paired:
            panel, vector, column = each
            place = [tirx.min(panel * width + vector * lanes + column, columns - 1)]
        return te.sum(multiplied(shares(*at[:-1], *each), values(*whole(at[:-3]), *place, at[-1])), axis=each)

    mixed = te.compute((*shape, values.shape[-1]), mix, name="mixed")
    return divide(mixed, shares, blocks, zero_for_nan=zero_for_nan)


def panels_of(columns: Any, lanes: int) -> Any:
    """Return how many panels so many columns fill."""
    width = PANEL_VECTORS * lanes
    return tirx.floordiv(columns + (width - 1), width)


def weigh(
    scores: te.Tensor, *terms: te.Tensor,
    blocks: Blocks, columns: Any, steps: Sequence[tuple[str, float | None]], is_paired: bool,
) -> te.Tensor:  # fmt: skip
    """Describe the powers of scores (batches..., block, row, panel, vector, lane) less the most of their row.

    Or pairs of them, those of a panel's two vectors. Of a block in tiles, panels are before rows.
    """
    lanes = int(scores.shape[-1])

    def score(*at: Any) -> Any:
        *batch, block, row, panel, vector, lane = blocks.by_row(at)
        value, rest, column = scores(*at), iter(terms), panel * (PANEL_VECTORS * lanes) + vector * lanes + lane
        for operator, constant in steps:
            other = tirx.const(constant, "float32") if constant is not None else None
            if other is None:
                term, place = next(rest), (*blocks.whole(batch), blocks.row(block, row), column)
                other = term(*(0 if is_one(e) else i for i, e in zip(place, term.shape, strict=True)))
            value = OPERATORS[operator](value, other)
        return tirx.Select(column < columns, value, tirx.const(float("-inf"), "float32"))

    row = te.compute(scores.shape, score, name="row")
    most = _reduced(te.max, row, blocks, "most")

    def power(*at: Any) -> Any:
        score, greatest = row(*at), most(*blocks.by_row(at)[:-3])
        return short_math.exp_of_difference(score, greatest) if is_paired else te.exp(score - greatest)

    if not is_paired:
        return te.compute(row.shape, power, name=SHARES)
    vector, none = te.reduce_axis((0, PANEL_VECTORS), "vector"), tirx.const(0, "float32")

    def share(*at: Any) -> Any:  # a sum, as TVM's schedule finds no place for what reads a vector and the next one
        found = power(*at[:-1], vector, at[-1])
        both = (tirx.Select(vector == number, found, none) for number in range(PANEL_VECTORS))
        return te.sum(bfloat16_pairs.pair(*both), axis=[vector])

    return te.compute((*scores.shape[:-2], lanes), share, name=SHARES)


def divide(mixed: te.Tensor, shares: te.Tensor, blocks: Blocks, *, zero_for_nan: bool) -> te.Tensor:
    """Describe the product (batches..., block, row, ...) of ``shares`` by the values, divided by the shares' sum.

    Of a block in tiles, (batches..., block, tiles, row, ...).
    """
    is_paired, one = shares.dtype == "int32", tirx.const(1, "float32")
    total = _reduced(te.sum, shares, blocks, "total", times=bfloat16_pairs.pair(one, one) if is_paired else None)
    inverse = te.compute(total.shape, lambda *i: one / total(*i), name="inverse")

    def element(*at: Any) -> Any:
        row = blocks.by_row(at)[: len(total.shape)]
        value = mixed(*at) * inverse(*row)
        return tirx.Select(total(*row) > 0, value, tirx.const(0, "float32")) if zero_for_nan else value

    return te.compute(mixed.shape, element, name="attention")


def in_pairs(values: te.Tensor, lanes: int) -> te.Tensor:
    """Describe (..., columns, width) as panels (..., panels, lanes, width) of pairs, a vector's columns apart."""
    columns, width = values.shape[-2], PANEL_VECTORS * lanes

    def element(*at: Any) -> Any:
        *batch, panel, column, lane = at
        both = (panel * width + vector * lanes + column for vector in range(PANEL_VECTORS))
        return bfloat16_pairs.pair(*(values(*batch, tirx.min(each, columns - 1), lane) for each in both))

    count = tirx.floordiv(columns + (width - 1), width)
    return te.compute((*values.shape[:-2], count, lanes, values.shape[-1]), element, name="pair")


def crop(tiles: te.Tensor, shape: Sequence[Any]) -> te.Tensor:
    """Describe the rows of tiles (batches..., tiles, rows, width) as ``shape``, (..., rows, width)."""
    tile = tiles.shape[-2]

    def element(*at: Any) -> Any:
        *batch, row, lane = at
        batches = [index for index, extent in zip(batch, shape, strict=False) if not is_one(extent)]
        return tiles(*batches, tirx.floordiv(row, tile), tirx.floormod(row, tile), lane)

    return te.compute(tuple(shape), element, name="crop")


def _reduced(
    reduce: Callable[..., Any], values: te.Tensor, blocks: Blocks, name: str, *, times: Any = None
) -> te.Tensor:
    """Describe a reduction of rows, or of pairs of bfloat16 ``times`` one, to a number for each row of a block."""
    rows = blocks.extents
    axes = [te.reduce_axis((0, extent), "each") for extent in blocks.by_row(values.shape)[len(rows) :]]

    def element(*row: Any) -> Any:
        value = values(*blocks.by_row((*row, *axes)))
        return reduce(value if times is None else bfloat16_pairs.dot(value, times), axis=axes)

    return te.compute(tuple(rows), element, name=name)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "relax.add": lambda a, b: a + b,
    "relax.subtract": lambda a, b: a - b,
    "relax.multiply": lambda a, b: a * b,
    "relax.divide": lambda a, b: a / b,
}
"""What may be done to scores."""


def fill(term: te.Tensor, width: int) -> te.Tensor:
    """Describe a tensor whose columns fill panels of ``width``; those that are not there count for nothing."""
    columns = tirx.floordiv(term.shape[-1] + (width - 1), width) * width

    def element(*at: Any) -> Any:
        return tirx.if_then_else(at[-1] < term.shape[-1], term(*at), tirx.const(0, term.dtype))

    return te.compute((*term.shape[:-1], columns), element, name="fill")


SHARES = "shares"
"""The block of a row's powers, or of pairs of them, which the last product reads."""

CHAIN = ("most", SHARES, "total", "inverse", "mixed", "attention")
"""The blocks behind the scores, in order."""


def schedule(sch: Schedule, machine: Machine) -> None:
    """Compute all that a tile of rows needs, one tile after the other."""
    anchor = primitives.find(sch, NAME)
    named = {str(sch.get(block).name_hint): block for block in primitives.blocks(sch)}
    schedule_packing(sch, named[PANELS])
    *batches, block, row, panel, vector, lane, step = sch.get_loops(anchor)
    work = primitives.product(primitives.extent(sch, loop) or primitives.UNKNOWN for loop in sch.get_loops(anchor))
    sch.reorder(*batches, block, panel, step, row, vector, lane)
    if primitives.extent(sch, block) is not None or not batches:
        shared = block = primitives.fuse(sch, [*batches, block])
    else:  # what an open extent divides is no index of a reduction
        shared = primitives.fuse(sch, batches)
    sch.set_scope(anchor, 0, "local")
    sch.reverse_compute_at(named["row"], panel)
    for name in CHAIN:
        sch.reverse_compute_at(named[name], block)
    primitives.parallel_if_worth(sch, shared, work)
    _mix(sch, named["mixed"], machine)
    sch.vectorize(lane)
    for loop in (row, vector):
        sch.unroll(loop)
    schedule_shares(sch, named, machine)
    primitives.vectorize_and_unroll(sch, named["attention"], below=2, lanes=machine.lanes)
    start = sch.decompose_reduction(anchor, step)
    primitives.vectorize_and_unroll(sch, start, below=2, lanes=machine.lanes)


def schedule_shares(sch: Schedule, named: Mapping[str, SBlockRV], machine: Machine) -> None:
    """Compute a block of rows' scores, their most, powers and sum in vectors."""
    sch.vectorize(sch.get_loops(named["row"])[-1])
    lanes, *added = sch.get_loops(named[SHARES])[-1 - _count_reduced(sch, named[SHARES]) :]
    sch.reorder(*added, lanes)
    sch.vectorize(lanes)
    for loop in added:
        sch.unroll(loop)
        sch.decompose_reduction(named[SHARES], loop)
    for name in ("most", "total"):
        first = sch.get_loops(named[name])[-_count_reduced(sch, named[name])]
        sch.decompose_reduction(named[name], first)
        reduce_in_lanes(sch, first, machine)


def _mix(sch: Schedule, mixed: SBlockRV, machine: Machine) -> None:
    """Hold tiles of the product by the values in registers."""
    done = sch.cache_write(mixed, 0, "local")
    row, width, *added = sch.get_loops(mixed)[-2 - _count_reduced(sch, mixed) :]
    rows = primitives.static(sch, row)
    vectors = divisors(primitives.static(sch, width) // machine.lanes, 4)
    fitting = [(tall, wide) for wide in vectors for tall in divisors(rows, rows) if machine.fits(tall, wide)]
    tall, wide = max(fitting, key=lambda tile: (tile[0] * tile[1], tile[0]))
    row_out, row_in = sch.split(row, [None, tall])
    outer, vector, lane = sch.split(width, [None, wide, machine.lanes])
    sch.reorder(row_out, outer, *added, row_in, vector, lane)
    sch.reverse_compute_at(done, outer)
    sch.vectorize(lane)
    primitives.unroll_tile(sch, mixed, done, added[0], (row_in, vector), below=3, lanes=machine.lanes)


def _count_reduced(sch: Schedule, block: SBlockRV) -> int:
    return sum(int(variable.iter_type) == primitives.REDUCTION for variable in sch.get(block).iter_vars)
