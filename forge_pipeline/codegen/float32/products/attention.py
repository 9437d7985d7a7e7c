"""softmax(q k + mask) v for a few rows of q at a time: their scores stay in the cache (docs/codegen.md).

The keys are packed into panels of whole vectors, the last of which is filled with zeros; its scores are -infinity, and
it reads the last row of the values again, times zero. Rows are computed in tiles, the last of which repeats the last
row where there are no more: no test inside. Powers are added up as they are, and the sums divided at the end (Dao et
al., "FlashAttention", 2022; a row's scores fit into the cache here, so that no maximum has to be corrected).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from forge_pipeline.codegen.float32.products.open_matmul import PANELS, ROWS, STEPS, choose_rows, schedule_packing
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine, divisors

NAME = "attention"
PANEL_VECTORS = 2
"""Vectors in a panel of keys."""

FEW = 6
"""Rows from which on a product is taken for scores."""


def tile_rows(machine: Machine, rows: Any, depth: Any) -> int:
    """Return how many rows are computed at once."""
    lengths = [rows] if isinstance(rows, int) else ROWS
    return choose_rows(machine, PANEL_VECTORS, depth if isinstance(depth, int) else STEPS, lengths)[1]


def attend(
    query: te.Tensor, keys: te.Tensor, values: te.Tensor, *terms: te.Tensor,
    steps: Sequence[tuple[str, float | None]], zero_for_nan: bool, tile: int, lanes: int,
) -> te.Tensor:  # fmt: skip
    """Describe attention of (..., rows, depth) over (..., depth, columns) and (..., columns, width).

    ``steps`` are what is done to scores before the softmax: an operator with its constant, or with the next of
    ``terms``, which broadcasts, and has as many columns as all panels (``fill``). ``zero_for_nan``: a row without a
    column that counts gives zeros. The result has tiles of rows, (..., tiles, tile, width), and no axes of one before.
    """
    *leading, rows, depth = query.shape
    batches = [extent for extent in leading if not _is_one(extent)]  # TVM knows no block by an axis of one
    columns, width = keys.shape[-1], PANEL_VECTORS * lanes
    count = tirx.floordiv(columns + (width - 1), width)
    shape = (*batches, tirx.floordiv(rows + (tile - 1), tile), tile)

    def whole(batch: Sequence[Any]) -> list[Any]:
        inner = iter(batch)
        return [0 if _is_one(extent) else next(inner) for extent in leading]

    def row_of(block: Any, row: Any) -> Any:
        return tirx.min(block * tile + row, rows - 1)

    def packed(*at: Any) -> Any:
        *batch, panel, step, lane = at
        column = panel * width + lane
        return tirx.if_then_else(column < columns, keys(*whole(batch), step, column), tirx.const(0, keys.dtype))

    panels = te.compute((*batches, count, depth, width), packed, name=PANELS)
    step = te.reduce_axis((0, depth), "step")

    def product(*at: Any) -> Any:
        *batch, block, row, panel, lane = at
        return te.sum(query(*whole(batch), row_of(block, row), step) * panels(*batch, panel, step, lane), axis=[step])

    scores = te.compute((*shape, count, width), product, name="scores", attrs={primitives.FAMILY: NAME})

    def score(*at: Any) -> Any:
        *batch, block, row, panel, lane = at
        value, rest, column = scores(*at), iter(terms), panel * width + lane
        for operator, constant in steps:
            other = tirx.const(constant, query.dtype) if constant is not None else None
            if other is None:
                term, place = next(rest), (*whole(batch), row_of(block, row), column)
                other = term(*(0 if _is_one(e) else i for i, e in zip(place, term.shape, strict=True)))
            value = OPERATORS[operator](value, other)
        return tirx.Select(column < columns, value, tirx.const(float("-inf"), query.dtype))

    row = te.compute(scores.shape, score, name="row")
    most = _over_lanes(row, lanes, te.max, ("maxima", "most"))
    powers = te.compute(row.shape, lambda *i: te.exp(row(*i) - most(*i[:-2])), name="powers")
    total = _over_lanes(powers, lanes, te.sum, ("sums", "total"))
    inverse = te.compute(total.shape, lambda *i: tirx.const(1, query.dtype) / total(*i), name="inverse")
    panel, column = te.reduce_axis((0, count), "panel"), te.reduce_axis((0, width), "column")

    def mix(*at: Any) -> Any:
        *batch, block, row, lane = at
        value = values(*whole(batch), tirx.min(panel * width + column, columns - 1), lane)
        return te.sum(powers(*batch, block, row, panel, column) * value, axis=[panel, column])

    mixed = te.compute((*shape, values.shape[-1]), mix, name="mixed")

    def element(*at: Any) -> Any:
        value = mixed(*at) * inverse(*at[:-1])
        return tirx.Select(total(*at[:-1]) > 0, value, tirx.const(0, query.dtype)) if zero_for_nan else value

    return te.compute(mixed.shape, element, name="attention")


def crop(tiles: te.Tensor, shape: Sequence[Any]) -> te.Tensor:
    """Describe the rows of tiles (batches..., tiles, rows, width) as ``shape``, (..., rows, width)."""
    tile = tiles.shape[-2]

    def element(*at: Any) -> Any:
        *batch, row, lane = at
        batches = [index for index, extent in zip(batch, shape, strict=False) if not _is_one(extent)]
        return tiles(*batches, tirx.floordiv(row, tile), tirx.floormod(row, tile), lane)

    return te.compute(tuple(shape), element, name="crop")


def _over_lanes(values: te.Tensor, lanes: int, reduce: Callable[..., Any], names: tuple[str, str]) -> te.Tensor:
    """Describe a reduction of (..., panels, whole vectors) to (...): each lane by itself, then the lanes."""
    *rows, count, width = values.shape
    panel, vector = te.reduce_axis((0, count), "panel"), te.reduce_axis((0, int(width) // lanes), "vector")
    lane = te.reduce_axis((0, lanes), "lane")

    def partial(*at: Any) -> Any:
        return reduce(values(*at[:-1], panel, vector * lanes + at[-1]), axis=[panel, vector])

    parts = te.compute((*rows, lanes), partial, name=names[0])
    return te.compute(tuple(rows), lambda *row: reduce(parts(*row, lane), axis=[lane]), name=names[1])


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "relax.add": lambda a, b: a + b,
    "relax.subtract": lambda a, b: a - b,
    "relax.multiply": lambda a, b: a * b,
    "relax.divide": lambda a, b: a / b,
}
"""What may be done to scores."""


def fill(term: te.Tensor, lanes: int) -> te.Tensor:
    """Describe a tensor with as many columns as all panels have; those that are not there count for nothing."""
    width = PANEL_VECTORS * lanes
    columns = tirx.floordiv(term.shape[-1] + (width - 1), width) * width

    def element(*at: Any) -> Any:
        return tirx.if_then_else(at[-1] < term.shape[-1], term(*at), tirx.const(0, term.dtype))

    return te.compute((*term.shape[:-1], columns), element, name="fill")


def _is_one(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm | int) and int(extent) == 1


CHAIN = ("maxima", "most", "powers", "sums", "total", "inverse")
"""The blocks of a row's softmax, in order."""


def schedule(sch: Schedule, machine: Machine) -> None:
    """Compute all that a tile of rows needs, one tile after the other."""
    anchor = primitives.find(sch, NAME)
    named = {str(sch.get(block).name_hint): block for block in primitives.blocks(sch)}
    schedule_packing(sch, named[PANELS])
    *batches, block, row, panel, column, step = sch.get_loops(anchor)
    work = primitives.product(primitives.extent(sch, loop) or primitives.UNKNOWN for loop in sch.get_loops(anchor))
    vector, lane = sch.split(column, [None, machine.lanes])
    sch.reorder(*batches, block, panel, step, row, vector, lane)
    if primitives.extent(sch, block) is not None or not batches:
        shared = block = primitives.fuse(sch, [*batches, block])
    else:  # what an open extent divides is no index of a reduction
        shared = primitives.fuse(sch, batches)
    sch.set_scope(anchor, 0, "local")
    sch.reverse_compute_at(named["row"], panel)
    for name in (*CHAIN, "mixed", "attention"):
        sch.reverse_compute_at(named[name], block)
    primitives.parallel_if_worth(sch, shared, work)
    _mix(sch, named["mixed"], machine)
    sch.vectorize(lane)
    for loop in (row, vector):
        sch.unroll(loop)
    for name in ("row", "powers"):
        sch.vectorize(sch.split(sch.get_loops(named[name])[-1], [None, machine.lanes])[1])
    for name in ("maxima", "sums"):
        lanes, panels, vectors = sch.get_loops(named[name])[-3:]
        sch.reorder(panels, vectors, lanes)
        sch.vectorize(lanes)
        sch.decompose_reduction(named[name], panels)
    for name in ("most", "total"):
        row, lane = sch.get_loops(named[name])[-2:]
        sch.unroll(lane)
        sch.decompose_reduction(named[name], lane)
    primitives.vectorize_and_unroll(sch, named["attention"], below=2, lanes=machine.lanes)
    start = sch.decompose_reduction(anchor, step)
    primitives.vectorize_and_unroll(sch, start, below=2, lanes=machine.lanes)


def _mix(sch: Schedule, mixed: SBlockRV, machine: Machine) -> None:
    """Hold tiles of the product by the values in registers."""
    done = sch.cache_write(mixed, 0, "local")
    *_, row, width, panel, column = sch.get_loops(mixed)
    rows = primitives.static(sch, row)
    vectors = divisors(primitives.static(sch, width) // machine.lanes, 4)
    fitting = [(tall, wide) for wide in vectors for tall in divisors(rows, rows) if machine.fits(tall, wide)]
    tall, wide = max(fitting, key=lambda tile: (tile[0] * tile[1], tile[0]))
    row_out, row_in = sch.split(row, [None, tall])
    outer, vector, lane = sch.split(width, [None, wide, machine.lanes])
    sch.reorder(row_out, outer, panel, column, row_in, vector, lane)
    sch.reverse_compute_at(done, outer)
    sch.vectorize(lane)
    primitives.unroll_tile(sch, mixed, done, panel, (row_in, vector), below=3, lanes=machine.lanes)
