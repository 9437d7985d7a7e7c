"""One row times a matrix that is no constant: the scores of a decoder's newest token.

Each number of the matrix is read once, so that packing it would cost more than the product. Columns are computed a
vector at a time, the last of which is moved back to end with them (``tir.tail_tiles``).
"""

from __future__ import annotations

from tvm.s_tir import Schedule

from forge_pipeline.codegen.float32.products.open_matmul import SERIAL_WORK
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.edges.tail_tiles import TILES, is_narrow, split_blocks
from forge_pipeline.codegen.tir.elementwise_blocks import schedule_elementwise
from forge_pipeline.codegen.tir.machine import Machine

NAME = "row_matmul"

VECTORS = 16
"""Vectors in a block of columns, which one thread computes."""


def schedule(sch: Schedule, machine: Machine) -> None:
    """Hold a vector of columns in a register along all steps."""
    anchor = primitives.find(sch, NAME)
    before, last = primitives.split_around(sch, anchor)
    for block in before:
        schedule_elementwise(sch, block, machine)
    *leading, m, n, k = sch.get_loops(anchor)
    work = primitives.product(primitives.extent(sch, loop) or primitives.UNKNOWN for loop in (*leading, n, k))
    n_block, n_out, lane = split_blocks(sch, n, VECTORS, machine.lanes)
    sch.reorder(*leading, m, n_block, n_out, k, lane)
    shared = primitives.fuse(sch, [*leading, m, n_block])
    sch.reverse_compute_at(last, n_out)
    if work >= SERIAL_WORK:
        primitives.parallel_if_worth(sch, shared, work)
    if not is_narrow(sch):
        sch.annotate(n_out, TILES, machine.lanes)
        sch.vectorize(lane)
    primitives.unroll_tile(sch, anchor, last, k, (), below=2, lanes=machine.lanes)
