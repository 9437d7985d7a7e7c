"""Convolutions of bytes over images whose height and width are known only when they run: as ``unsized`` has floats.

Pixels of a pointwise convolution whose bytes are read where they lie are one row (``flat``), whose last tile is moved
back (`tail_tiles`). Every other one reads a copy of some rows, which it needs anyway, with a margin for whole tiles.
"""

from __future__ import annotations

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from forge_pipeline.codegen.float32.direct import PIXELS, VECTORS
from forge_pipeline.codegen.float32.dynamic_shape import ROW_BLOCK
from forge_pipeline.codegen.int8.isa.dot_product import READS, WEIGHTS, tensorize
from forge_pipeline.codegen.int8.isa.table import dot_product
from forge_pipeline.codegen.int8.register_tile import STEPS
from forge_pipeline.codegen.int8.x86 import narrow_store
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.flatten_pixels import ANY_ORDER
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.codegen.tir.tail_tiles import MARGIN, NARROW, TILES

MOST_PIXELS = 1024
"""Pixels that a thread computes at once, of an image whose pixels are one row."""


def schedule_direct(sch: Schedule, machine: Machine, anchor: SBlockRV) -> None:
    """Hold a tile of pixels by filters in registers along the whole reduction; then what follows, then store."""
    annotations = sch.get(anchor).annotations
    pixels, vectors = int(annotations[PIXELS]), int(annotations[VECTORS])
    reads, weights = str(annotations[READS]), str(annotations[WEIGHTS])
    in_place = ANY_ORDER in annotations
    if in_place and NARROW in (sch.mod["main"].attrs or {}):
        pixels = 1
    before, last = primitives.split_around(sch, anchor)
    for block in before[:-1]:
        sch.compute_inline(block)  # bytes that are widened, or int32 that are packed, into the copy with a margin
    n, row, h, w, out, *reduction, byte = sch.get_loops(anchor)
    rows, lanes = (primitives.static(sch, loop) for loop in (row, out))
    steps = primitives.product(primitives.static(sch, loop) for loop in reduction)
    row_out, row_in = sch.split(row, [None, vectors])
    if in_place:
        tiles = max(1, min(machine.l2 // 2 // (dot_product(machine).k_inner * steps), MOST_PIXELS) // pixels)
        row_block, w_out, w_in = sch.split(w, [None, tiles, pixels])
        outer, inner = [n, h, row_block, row_out], [w_out]
        if pixels > 1:
            sch.annotate(w_out, TILES, pixels)
    else:
        row_block, h_in = sch.split(h, [None, ROW_BLOCK])
        w_out, w_in = sch.split(w, [None, pixels])
        outer, inner = ([n, row_block], [row_out, h_in, w_out]) if before else ([n, row_block, row_out], [h_in, w_out])
    sch.annotate(w_out, MARGIN, pixels)
    sch.reorder(*outer, *inner, *reduction, w_in, row_in, out, byte)
    shared = primitives.fuse(sch, outer)
    stores = narrow_store.compute_at(sch, last, w_out)
    for block in before[-1:]:
        sch.compute_at(block, shared)
        if primitives.extents(sch, block)[-1] == lanes:
            sch.vectorize(sch.get_loops(block)[-1])
    primitives.parallel_if_worth(sch, shared, rows * lanes * primitives.UNKNOWN**2 * steps // STEPS)
    for loop in (w_in, row_in, reduction[-1]):
        sch.unroll(loop)
    depth = 1 + len(inner)
    for block in stores:
        primitives.vectorize_and_unroll(sch, block, below=depth, lanes=lanes)
    primitives.vectorize_and_unroll(sch, sch.decompose_reduction(anchor, reduction[0]), below=depth, lanes=lanes)
    tensorize(sch, out, machine, dot_product(machine), reads, weights, later=True)
