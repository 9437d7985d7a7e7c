"""A product of which a call brings few rows, by vectors: they read the weights as they are packed for tiles.

A tile of one row takes as long as one of 16. Each word of a panel's line is a vector of 16 columns, as the dot products
of vectors want them.
"""

from __future__ import annotations

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from forge_pipeline.codegen.amx.lines import copy_lines
from forge_pipeline.codegen.amx.rows import GROUP
from forge_pipeline.codegen.int8.isa.dot_product import BYTES, tensorize
from forge_pipeline.codegen.int8.isa.table import dot_product
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.elementwise_blocks import schedule_elementwise
from forge_pipeline.codegen.tir.machine import Machine

ROWS, PANELS = 2, 4
"""Rows and panels whose sums are in registers together: so many chains of additions hide the latency of one."""


def schedule(sch: Schedule, machine: Machine, anchor: SBlockRV, *, loops: bool) -> None:
    """Hold two rows by some panels of sums in registers; ``loops``: over the steps of a word, of bytes."""
    before, last = primitives.split_around(sch, anchor)
    nest = sch.get_loops(anchor)
    own = 7 + loops
    groups, (panel, m, v, column, part, chunk, word, *step) = nest[:-own], nest[-own:]
    panels, rows = primitives.static(sch, panel), primitives.static(sch, m)
    together = max(count for count in range(1, PANELS + 1) if panels % count == 0)
    p_out, p_in = sch.split(panel, [None, together])
    m_out, m_in = sch.split(m, [None, ROWS])
    sch.reorder(*groups, p_out, m_out, part, chunk, word, m_in, p_in, v, column, *step)
    shared = primitives.fuse(sch, [*groups, p_out])
    sch.reverse_compute_at(last, m_out)
    primitives.vectorize_where_filled(sch, last, machine.lanes)
    *others, lines = before
    for block in others:
        schedule_elementwise(sch, block, machine)
    copy_lines(sch, lines, None, 0)
    primitives.parallel_if_worth(sch, shared, primitives.product(primitives.extents(sch, anchor)) // rows)
    sch.annotate(m_out, GROUP, [rows, ROWS])
    if not loops:
        sch.vectorize(column)
    for loop in (m_in, p_in, v):
        sch.unroll(loop)
    start = sch.decompose_reduction(anchor, part)
    for loop in sch.get_loops(start)[-4:-1]:
        sch.unroll(loop)
    sch.vectorize(sch.get_loops(start)[-1])
    if loops:
        tensorize(sch, column, machine, dot_product(machine), BYTES, "int8", full=True)
