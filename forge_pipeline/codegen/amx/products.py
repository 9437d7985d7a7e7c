"""Products in AMX's tiles: rows of 64 bytes times packed weights, and the loops around the tiles.

An image or a matrix is copied first so that every row of a tile is a line of the cache (`lines`). A block of rows that
stays in the second cache is multiplied by all panels of weights, one after the other. Sums pass through memory once,
where all that follows a product is applied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from forge_pipeline.codegen.amx import few_rows, operands
from forge_pipeline.codegen.amx.configuration import PANEL, TILES
from forge_pipeline.codegen.amx.lines import MATRIX, PIECE, Taps, copy_lines
from forge_pipeline.codegen.amx.operands import ALL, Operands, filled, round_up
from forge_pipeline.codegen.amx.rows import GROUP, IMAGE, Rows, groups_of, is_few
from forge_pipeline.codegen.amx.tiles import BYTES, LANES, ROWS, WORDS
from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.int8.x86 import narrow_store
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.elementwise_blocks import schedule_elementwise
from forge_pipeline.codegen.tir.machine import Machine

WIDTH = "forge.amx_width"
"""The annotation of sums: pixels of a row of results over an image, 0 over a matrix."""
SMALL = 4
"""The part of the second cache, one of so many, that a block of rows fills beside weights that stay there."""
STORED_TOGETHER = 4
"""Pixels whose bytes are stored at once."""
TYPICAL = 128
"""Rows that any number of them is taken for: those of a sentence."""
TYPICAL_SIDE = 28
"""Height and width that an image of any size is taken to have."""


def typical_rows(extents: Sequence[Any]) -> int:
    """Return how many rows there are, or are taken to be where a call says."""
    return math.prod(extents) if all(isinstance(extent, int) for extent in extents) else TYPICAL


def typical_pixels(geometry: Geometry) -> int:
    """Return how many pixels a result has, or is taken to have where a call says."""
    return math.prod(geometry.output) if geometry.is_static else TYPICAL_SIDE**2


def is_worth(of: Operands, rows: int, shape: tuple[int, ...], steps: int | None = None) -> bool:
    """Return whether enough of the tiles is filled by so many rows times weights (parts, steps, columns).

    ``steps``: how many of all parts are not there to fill a line.
    """
    parts, padded, columns = shape
    height, width = (round_up(extent, ROWS * operands.tiles_of(extent)) for extent in (rows, columns))
    wanted = rows * (steps or parts * padded) * columns
    return wanted >= of.worth * height * parts * round_up(padded, of.steps) * width


def of_matrix(
    sums: te.Tensor, shape: Sequence[Any], columns: int, then: Callable[[Any, Any], Any], name: str
) -> te.Tensor:
    """Describe ``then(sum, column)`` of a product of matrices as (.., rows, columns); ``shape`` is (.., rows)."""
    rows, group, width = Rows.of(shape), int(sums.shape[2]), LANES * int(sums.shape[3])

    def element(*at: Any) -> Any:
        *place, n = at
        row = rows.number(place)
        g, m = (row // group, row % group) if rows.is_open else (0, row)
        return then(sums(g, n // width, m, n % width // LANES, n % LANES), n)

    return te.compute((*shape, columns), element, name=name)


def of_image(sums: te.Tensor, geometry: Geometry, taps: Taps) -> Callable[..., Any]:
    """Return what reads sums by the place of a result in blocks."""
    nr, width = int(sums.shape[-2]), geometry.output[1]

    def read(n: Any, block: Any, h: Any, w: Any, lane: Any) -> Any:
        pixel = h * width + w
        at = (n, pixel // taps.group, block // nr, pixel % taps.group) if taps.group else (n, block // nr, pixel)
        return sums(*at, block % nr, lane)

    return read


def blocked_shape(image: te.Tensor, geometry: Geometry) -> tuple[Any, ...]:
    """Return the shape of a result in blocks."""
    return (image.shape[0], -(-geometry.filters // LANES), *geometry.output, LANES)


def sums_of_image(lines: te.Tensor, panels: te.Tensor, of: Operands, geometry: Geometry, taps: Taps) -> te.Tensor:
    """Describe the sums (image, group if there are any, panel, pixel, tile side by side, column)."""
    results = geometry.output[0] * geometry.output[1]
    if not taps.group:
        return sums_of(lines, panels, of, filled(results), taps)
    return sums_of(lines, panels, of, taps.group, taps, groups_of(results, taps.group))


def sums_of(
    lines: te.Tensor, panels: te.Tensor, of: Operands, rows: int, taps: Taps = MATRIX, groups: Any = 1
) -> te.Tensor:
    """Describe the sums (image, panel, row or pixel, tile side by side, column) of lines times packed weights.

    Of an image of any size there are ``groups`` of so many ``rows``.
    """
    batch, phases, chunks, *_ = lines.shape
    count, parts, nr = (int(extent) for extent in panels.shape[:3])
    chunks = int(chunks)
    part, chunk = te.reduce_axis((0, parts // chunks), "part"), te.reduce_axis((0, chunks), "chunk")
    words = te.reduce_axis((0, WORDS), "word")
    step = te.reduce_axis((tirx.const(0, "int64"), tirx.const(of.at_once, "int64")), "step")

    def element(n: Any, *at: Any) -> Any:
        *group, panel, m, v, column = at
        down = part * taps.apart
        phase = down % taps.stride if int(phases) > 1 else 0
        first = group[0] * rows + m if group else m
        line = (n, phase, chunk, first + down // taps.stride * taps.width)
        term = of.describe(
            lambda word: lines(*line, word), panels, (panel, part * chunks + chunk, v), words, column, step
        )
        return te.sum(term, axis=[part, chunk, words, *([step] if of.loops else [])])

    attributes = {primitives.FAMILY: of.name, WIDTH: 1 if taps.group else taps.width}
    if taps.group or (taps is MATRIX and not isinstance(batch, tirx.IntImm | int)):
        attributes |= {GROUP: rows, **({IMAGE: 1} if taps.group else {})}
    shape = (batch, *([groups] if taps.group else []), count, rows, nr, LANES)
    return te.compute(shape, element, name="sums", attrs=attributes)


def schedule(sch: Schedule, machine: Machine) -> None:
    """Multiply blocks of rows by panels, tile by tile; then what follows, from memory."""
    of, anchor = _found(sch)
    if is_few(sch):
        few_rows.schedule(sch, machine, anchor, loops=of.loops)
        return
    width, is_open = int(sch.get(anchor).annotations[WIDTH]), GROUP in sch.get(anchor).annotations
    before, last = primitives.split_around(sch, anchor)
    stored = sch.cache_write(anchor, 0, "local")
    loops = sch.get_loops(anchor)
    own = 7 + of.loops
    groups, (panel, m, v, column, part, chunk, *word) = loops[:-own], loops[-own:]
    panels, rows, nr, parts, chunks = (primitives.static(sch, loop) for loop in (panel, m, v, part, chunk))
    mr = operands.tiles_of(rows)
    tiles = rows // (ROWS * mr)
    work = panels * rows * nr * parts * chunks * BYTES * LANES
    extents = primitives.extents(sch, before[-1])
    held, around = primitives.product(extents) * (BYTES // of.items), ((extents[3] or rows) - rows) / (ROWS * mr)
    weights = panels * nr * parts * chunks * BYTES * LANES
    of_block = tiles if is_open else tiles_of_block(machine, tiles, held, weights, around)
    m_block, m_out, m_in = sch.split(m, [None, of_block, ROWS * mr])
    tile = [v, column] if nr > 1 else [sch.fuse(v, column)]  # loops of one turn are none to what TVM compares
    sch.reorder(*groups, m_block, panel, m_out, part, chunk, m_in, *tile, *word)
    in_blocks = panels == 1 or (not is_open and tiles // of_block >= machine.cores)
    shared = primitives.fuse(sch, [*groups, m_block, *([] if in_blocks else [panel])])
    sch.reverse_compute_at(stored, m_out)
    _finish(sch, last, m_out, width, machine, is_open=is_open)
    *others, lines = before
    for block in others:
        schedule_elementwise(sch, block, machine)
    inside = in_blocks and tiles > of_block
    whole_rows = width and not is_open and not (inside and of_block * ROWS * mr % width)
    copy_lines(sch, lines, shared if inside else None, width if whole_rows else 0)
    primitives.parallel_if_worth(sch, shared, work)
    sch.annotate(shared, TILES, 1)
    sch.annotate(m_out, PANEL, 1)
    if is_open:
        sch.annotate(m_out, GROUP, [rows, ROWS * mr])
        if width:
            sch.annotate(m_out, IMAGE, 1)
    zeros = sch.decompose_reduction(anchor, part)
    sch.tensorize(m_in, operands.add_products(of, mr, nr))
    sch.tensorize(sch.get_loops(zeros)[-1 - len(tile)], operands.clear(of, mr, nr))
    sch.tensorize(sch.get_loops(stored)[-1 - len(tile)], operands.store(of, mr, nr))


def _found(sch: Schedule) -> tuple[Operands, SBlockRV]:
    """Return what is multiplied, and the block that does."""
    blocks = primitives.blocks(sch)
    lines = next(block for block in blocks if PIECE in sch.get(block).annotations)
    left = str(sch.get(lines).writes[0].source.ty.dtype)
    return next(
        (of, block) for of in ALL for block in blocks if (primitives.family_of(sch, block), left) == (of.name, of.left)
    )


def tiles_of_block(machine: Machine, tiles: int, lines: int, weights: int, around: float) -> int:
    """Return how many tiles of rows are multiplied by a panel before the next is; ``lines`` are bytes of all tiles.

    Weights that stay in the second cache are read from it for each block, so that lines need little of it; others come
    from behind it, for as few blocks as lines have room for. Of lines that outweigh the weights each core has its own,
    where a block is twice the size of what it reads ``around`` it, in tiles.
    """
    room = max(1, machine.l2 // (SMALL if weights <= machine.l2 // 2 else 2) * tiles // lines)
    fitting = [count for count in range(1, tiles + 1) if tiles % count == 0 and count <= room]
    own = [count for count in fitting if 2 * around <= count <= tiles // machine.cores]
    return max(own if lines > weights and own else fitting)


def _finish(sch: Schedule, last: SBlockRV, tile: LoopRV, width: int, machine: Machine, *, is_open: bool) -> None:
    """Do what follows a product with each tile of sums, as it lies in memory."""
    packs = narrow_store.is_packed(sch, last)
    *rows, _ = map(sch.get, sch.get_loops(last))
    if width and not is_open:

        def flat(n: Any, oc_block: Any, h: Any, w: Any, lane: Any) -> tuple[Any, ...]:
            return n, oc_block, h * width + w, lane

        for block in sch.get_producers(last) if packs else []:
            sch.transform_layout(block, ("write", 0), flat)
            sch.transform_block_layout(block, flat)
        sch.transform_block_layout(last, flat)
    elif len(rows) > 1 and not is_open:
        extents = [int(loop.extent) for loop in rows]

        def together(*at: Any) -> tuple[Any, ...]:
            return Rows.of(extents).number(at[:-1]), at[-1]

        sch.transform_block_layout(last, tirx.IndexMap.from_func(together, ndim=len(extents) + 1, index_dtype="int64"))
    stores = narrow_store.compute_at(sch, last, tile)
    if not packs:
        primitives.vectorize_where_filled(sch, last, machine.lanes)
        return
    *_, pixel, lane = sch.get_loops(last)
    few, pixel = sch.split(pixel, [None, STORED_TOGETHER])
    sch.compute_at(stores[0], few)
    for block in stores:
        *_, pixel, lane = sch.get_loops(block)
        sch.vectorize(lane)
    sch.unroll(pixel)
