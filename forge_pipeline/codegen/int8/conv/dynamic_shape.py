"""Convolutions of bytes over images whose height and width are known only when they run: the template of `direct`.

Pixels of a pointwise convolution whose bytes are read where they lie are one row (`flatten_pixels`), whose last tile is
moved back (`tail_tiles`). Every other one reads a copy of some rows, which it needs anyway, with a margin for whole
tiles; where weights outgrow the second cache, the image is small: it is copied whole, and threads share the filters.
"""

from __future__ import annotations

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from forge_pipeline.codegen.float32.conv.direct import PIXELS, VECTORS
from forge_pipeline.codegen.float32.conv.dynamic_shape import ROW_BLOCK
from forge_pipeline.codegen.int8.isa.dot_product import READS, WEIGHTS, tensorize
from forge_pipeline.codegen.int8.isa.table import dot_product
from forge_pipeline.codegen.int8.register_tile import STEPS
from forge_pipeline.codegen.int8.x86 import narrow_store
from forge_pipeline.codegen.tir import primitives, row_blocks
from forge_pipeline.codegen.tir.edges.tail_tiles import MARGIN, TILES, most_pixels, split_blocks
from forge_pipeline.codegen.tir.flatten_pixels import ANY_ORDER
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.codegen.tir.prefetch.weights import ask_for_next

MOST_PIXELS = 1024
"""Pixels that a thread computes at once, of an image whose pixels are one row."""


def schedule_direct(sch: Schedule, machine: Machine, anchor: SBlockRV) -> None:
    """Hold a tile of pixels by filters in registers along the whole reduction, as `direct.schedule` does."""
    annotations = sch.get(anchor).annotations
    pixels, vectors = int(annotations[PIXELS]), int(annotations[VECTORS])
    reads, weights = str(annotations[READS]), str(annotations[WEIGHTS])
    in_place = ANY_ORDER in annotations
    if in_place:
        pixels = most_pixels(sch, pixels)
    before, last = primitives.split_around(sch, anchor)
    for block in before[:-1]:
        sch.compute_inline(block)  # bytes that are widened, or int32 that are packed, into the copy with a margin
    n, oc, h, w, out, *reduction, k_inner = sch.get_loops(anchor)
    oc_blocks, lanes = (primitives.static(sch, loop) for loop in (oc, out))
    steps = primitives.product(primitives.static(sch, loop) for loop in reduction)
    is_blocked = bool(before) and primitives.extents(sch, before[-1])[-1] == lanes
    is_small = not in_place and is_blocked and dot_product(machine).k_inner * lanes * oc_blocks * steps > machine.l2
    oc_out, oc_in = sch.split(oc, [None, vectors])
    if in_place:
        tiles = max(1, min(machine.l2 // 2 // (dot_product(machine).k_inner * steps), MOST_PIXELS) // pixels)
        row_block, w_out, w_in = split_blocks(sch, w, tiles, pixels)
        outer, inner = [n, h, row_block, oc_out], [w_out]
        if pixels > 1:
            sch.annotate(w_out, TILES, pixels)
    else:
        w_out, w_in = sch.split(w, [None, pixels])
        if is_small:
            outer, inner = [n, oc_out], [h, w_out]
            ask_for_next(sch, h, machine, shared=True)
        else:
            row_block, h_in = sch.split(h, [None, ROW_BLOCK])
            outer, inner = [n, row_block, oc_out], [h_in, w_out]
            if before:
                outer, inner = outer[:2], [oc_out, *inner]
    sch.annotate(w_out, MARGIN, pixels)
    sch.reorder(*outer, *inner, *reduction, w_in, oc_in, out, k_inner)
    work = oc_blocks * lanes * primitives.UNKNOWN**2 * steps // STEPS
    if in_place or is_small:
        shared, depth = primitives.fuse(sch, outer), 1 + len(inner)
        primitives.parallel_if_worth(sch, shared, work)
    else:
        shared, depth = row_block, len(outer) + len(inner)
        row_blocks.share(sch, row_block, ROW_BLOCK, machine, work=work, inside=outer[2:])
    stores = narrow_store.compute_at(sch, last, inner[-1])
    for block in before[-1:]:
        if not is_small:
            sch.compute_at(block, shared)
        if is_blocked:
            sch.vectorize(sch.get_loops(block)[-1])
            if is_small:
                copied = primitives.fuse(sch, sch.get_loops(block)[:2])
                primitives.parallel_if_worth(sch, copied, lanes * primitives.UNKNOWN**2)
    for loop in (w_in, oc_in, reduction[-1]):
        sch.unroll(loop)
    for block in stores:
        primitives.vectorize_and_unroll(sch, block, below=depth, lanes=lanes)
    primitives.vectorize_and_unroll(sch, sch.decompose_reduction(anchor, reduction[0]), below=depth, lanes=lanes)
    tensorize(sch, out, machine, dot_product(machine), reads, weights, later=True)
