"""Matrix products of which rows, columns or steps are as many as a call brings: a sequence of any length.

Rows are computed in register tiles, the last of which is moved back to end with the rows (``tir.tail_tiles``). Columns
of any number are packed into panels while the kernel runs, the last one filled with zeros, and what reads the result
leaves the filling out: whole vectors everywhere, and no test inside a tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import DataType, te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.edges.tail_tiles import TILES, is_narrow, most_pixels, split_blocks, tiles_of_block
from forge_pipeline.codegen.tir.elementwise_blocks import schedule_elementwise
from forge_pipeline.codegen.tir.machine import Machine, divisors
from forge_pipeline.codegen.tir.prefetch.weights import ask_for_next

NAME = "open_matmul"

ROWS = (8, 16, 20, 50, 64, 128, 197, 512)
"""Lengths for which tiles are chosen: short and long sequences, powers of two and such that no tile divides all."""

FEW = 8
"""The rows whose tiles ask for all of the next weights, where a call brings no more. With 16, eight rows by 768 x 3072
took 1.2 of the time by AVX-512 and 1.5 by AVX2; with fewer, 50 rows took 1.02 by AVX2 (Zen 4)."""

SERIAL_WORK = 1 << 17
"""Multiply-adds below which a product stays on one thread: some five microseconds, what waking another one takes."""

STEPS = 64
"""What an open number of steps is taken for."""

FAR_WEIGHT_COST = 0.25
"""Cycles that a vector of weights takes beside `machine.WEIGHT_COST`, where panel and rows outgrow the first cache."""

PANEL = "forge.panel"
"""The annotation with the width of a packed panel of weights; 0 for a product of two activations."""

PACKS = "forge.packs"
"""The annotation of a product whose columns are packed by the kernel itself."""

APART = "forge.apart"
"""The annotation with the bytes from one row to the next, 0 where a call brings them."""

PANELS = "panels"
"""The name of the block that packs columns."""

PACKED_VECTORS = 2
"""Vectors in a panel that a kernel packs: where columns are few, little of it is filling."""


def choose_rows(
    machine: Machine, vectors: int, steps: int, known: int | None = None, apart: int = 0
) -> tuple[float, int]:
    """Return the cycles that a row takes on average in the best tile ``vectors`` wide, and how many rows that has.

    ``known``: the number of rows, None where a call brings it; ``apart``: bytes from one to the next. Weights
    far from the core are counted where a call brings the rows alone: the tiles that this would choose for known rows
    were slower (170 GFLOP/s against 182, with weights 768 wide).
    """
    lengths, found = (ROWS, []) if known is None else ((known,), [])
    for rows in range(1, machine.registers):
        if rows == 1 or machine.fits(rows, vectors):
            step = machine.step_cycles(rows, vectors) + machine.conflict_cycles(rows, apart)
            if known is None and machine.item * steps * (machine.lanes * vectors + rows) > machine.l1:
                step += FAR_WEIGHT_COST * vectors
            tile = step * steps + machine.tile_cycles(rows, vectors)
            found.append((sum(-(-length // rows) * tile / length for length in lengths), -rows))
    cycles, rows = min(found)
    return cycles, -rows


def panel_vectors(machine: Machine, steps: int, columns: int, known: int | None, apart: int) -> int:
    """Return how many vectors a panel of ``columns`` columns best has; what fills the last one is computed too.

    ``known``: the number of rows, None where a call brings it; ``apart``: bytes from one to the next.
    """
    vectors = -(-columns // machine.lanes)

    def cycles(width: int) -> float:
        return -(-vectors // width) * choose_rows(machine, width, steps, known, apart)[0]

    return min((width for width in (4, 3, 2, 1) if width <= vectors), key=lambda width: (cycles(width), -width))


def row_bytes(left: te.Tensor) -> int:
    """Return the bytes from one row of a tensor to the next, 0 where a call brings them."""
    steps = left.shape[-1]
    return int(steps) * DataType(str(left.dtype)).bits // 8 if isinstance(steps, tirx.IntImm | int) else 0


def multiply_packing(left: te.Tensor, right: te.Tensor, leading: list[Any], pick: Any, width: int) -> te.Tensor:
    """Describe (..., rows, steps) times (..., steps, columns), whose columns are packed into panels of ``width``.

    The result has panels too, (..., rows, panels, width): what reads it knows how many columns there are. ``leading``
    are the result's extents before rows; ``pick(index, extents)`` is where an operand with these leading
    extents is read.
    """
    step = te.reduce_axis((0, left.shape[-1]), "step")
    columns = right.shape[-1]
    count = tirx.floordiv(columns + (width - 1), width)

    def packed(*index: Any) -> Any:
        *batch, panel, k, lane = index
        column = panel * width + lane
        return tirx.if_then_else(column < columns, right(*batch, k, column), tirx.const(0, right.dtype))

    def element(*index: Any) -> Any:
        *batch, row, panel, lane = index
        a, b = (pick(tuple(batch), side.shape[:-2]) for side in (left, right))
        return te.sum(left(*a, row, step) * panels(*b, panel, step, lane), axis=[step])

    panels = te.compute((*right.shape[:-2], count, right.shape[-2], width), packed, name=PANELS)
    attributes = {primitives.FAMILY: NAME, PACKS: 1, APART: row_bytes(left)}
    return te.compute((*leading, left.shape[-2], count, width), element, name="product", attrs=attributes)


def crop(panels: te.Tensor, columns: Any) -> te.Tensor:
    """Describe the first ``columns`` columns of panels (..., rows, panels, width), as (..., rows, columns)."""
    width = panels.shape[-1]

    def element(*index: Any) -> Any:
        *row, column = index
        return panels(*row, tirx.floordiv(column, width), tirx.floormod(column, width))

    return te.compute((*panels.shape[:-2], columns), element, name="crop")


def schedule(sch: Schedule, machine: Machine) -> None:
    """Hold a tile of rows by vectors in registers along all steps, for rows that stay in the second cache."""
    anchor = primitives.find(sch, NAME)
    before, last = primitives.split_around(sch, anchor)
    annotations = sch.get(anchor).annotations
    if PACKS in annotations:
        *leading, m, n, column, k = sch.get_loops(anchor)
    else:
        *leading, m, n, k = sch.get_loops(anchor)
        width = int(annotations[PANEL]) or _plain_width(sch, machine, n, k)
        n, column = sch.split(n, [None, width])
    work = primitives.product(primitives.extent(sch, loop) or primitives.UNKNOWN for loop in (m, n, column, k))
    for block in before:
        if sch.get(block).name_hint == PANELS:
            schedule_packing(sch, block)
        else:
            schedule_elementwise(sch, block, machine)
    vectors, steps = primitives.static(sch, column) // machine.lanes, primitives.extent(sch, k) or STEPS
    m_block, m_out, m_in = _split_rows(
        sch,
        machine,
        m,
        vectors,
        steps,
        int(annotations[APART]),
        [primitives.extent(sch, loop) for loop in (*leading, n)],
    )
    n_in, lane = sch.split(column, [None, machine.lanes])
    sch.reorder(*leading, m_block, n, m_out, k, m_in, n_in, lane)
    shared = primitives.fuse(sch, [*leading, m_block, n])
    sch.reverse_compute_at(last, m_out)
    if work >= SERIAL_WORK:
        primitives.parallel_if_worth(sch, shared, work)
    sch.vectorize(lane)
    primitives.unroll_tile(sch, anchor, last, k, (m_in, n_in), below=2, lanes=machine.lanes)


def schedule_packing(sch: Schedule, block: SBlockRV) -> None:
    """Pack a panel's row at a time: LLVM makes masked vectors of it, where as vectors each number has a test by itself.

    Nothing is divided by an open extent: panels are a loop of their own.
    """
    *batches, panel, _, _ = sch.get_loops(block)
    work = primitives.product(primitives.extent(sch, loop) or primitives.UNKNOWN for loop in sch.get_loops(block))
    primitives.parallel_if_worth(sch, primitives.fuse(sch, batches) if batches else panel, work)


def _plain_width(sch: Schedule, machine: Machine, n: LoopRV, k: LoopRV) -> int:
    """Return how many columns of an operand that is not packed a tile has: as many vectors as divide them."""
    vectors = primitives.static(sch, n) // machine.lanes
    steps = primitives.extent(sch, k) or STEPS
    return machine.lanes * min(divisors(vectors, 4), key=lambda nr: (choose_rows(machine, nr, steps)[0] / nr, -nr))


def _split_rows(
    sch: Schedule, machine: Machine, m: LoopRV, vectors: int, steps: int, apart: int, parts: Sequence[int | None]
) -> tuple[LoopRV, LoopRV, LoopRV]:
    """Return loops over blocks of rows, tiles and rows; the last tile is moved back where they do not divide."""
    known = primitives.extent(sch, m)
    rows = most_pixels(sch, choose_rows(machine, vectors, steps, known, apart)[1])
    rows = rows if known is None else min(known, rows)
    tiles = tiles_of_block(machine, machine.item * steps * rows, parts)
    if known is not None and known % rows == 0:
        tiles = max(divisors(known // rows, tiles))
    m_block, m_out, m_in = split_blocks(sch, m, tiles, rows)
    if not is_narrow(sch):
        ask_for_next(sch, m_out, machine, min(tiles, -(-(known or FEW) // rows)), shared=True)
    if rows > 1 and (known is None or known % rows):
        sch.annotate(m_out, TILES, rows)
    return m_block, m_out, m_in
