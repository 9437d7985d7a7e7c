"""Frames are added up along the deepest chain of calls."""

from __future__ import annotations

from forge_pipeline.codegen.memory.stack import deepest

LEAF = """\
\t.type\tleaf,%function
leaf:
\tpush\t{r4, lr}
\tsub.w\tsp, sp, #4096
\tpop\t{r4, pc}
\t.size\tleaf, .Lfunc_end0-leaf
"""
ALIGNED = """\
\t.type\taligned,%function
aligned:
\tpush.w\t{r4, r5, r6, r7, r8, lr}
\tvpush\t{d8, d9}
\tsub\tsp, #40
\tmov\tr4, sp
\tbfc\tr4, #0, #6
\tmov\tsp, r4
\tbl\tleaf
\t.size\taligned, .Lfunc_end1-aligned
"""
LAUNCHES = """\
\t.type\tlaunches,%function
launches:
\tstr\tlr, [sp, #-8]!
\tblx\tr3
\t.long\taligned-(.LPC15_2+4)
\t.size\tlaunches, .Lfunc_end2-launches
"""


def test_a_frame_is_what_is_pushed_taken_and_lost_to_alignment() -> None:
    assert deepest(LEAF) == 8 + 4096
    assert deepest(ALIGNED) == 24 + 16 + 40 + 64


def test_the_deepest_chain_counts_and_a_task_that_is_handed_on_is_called() -> None:
    assert deepest(LEAF + ALIGNED + LAUNCHES) == 8 + 144 + 4104
    assert deepest(LEAF + LAUNCHES) == 4104
    assert deepest("") == 0
