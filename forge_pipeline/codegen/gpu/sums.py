"""The schedule of sums, maxima and other reductions on a GPU that a thread does by itself."""

from __future__ import annotations

import math
from typing import Any, Final

from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError
from tvm.s_tir.dlight.analysis import get_root_block
from tvm.s_tir.dlight.gpu.base import GPUScheduleRule
from tvm.s_tir.dlight.gpu.matmul import auto_inline_consumer_chain, auto_inline_producers

THREADS: Final = 128
"""Of a block."""
REDUCES: Final = tirx.IterVar.CommReduce
SHORT: Final = 64
"""Numbers up to which a thread reduces faster than a block of threads."""


class Sums(GPUScheduleRule):  # type: ignore[misc]
    """The schedule of a sum, a maximum, or another reduction a thread, which keeps it in a register.

    Of pooling and convolutions in groups: TVM's schedules would have a block of threads for each result, or would keep
    the sum in memory. ``most``: of no more numbers than these.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most

    def apply(self, func: Any, target: Any, _: bool) -> Any:
        """Return a schedule, or None where there is not one reduction, or it cannot be done in place."""
        if not isinstance(func, tirx.PrimFunc) or not self.is_target_available(target):
            return None
        sch = s_tir.Schedule(func)
        blocks = sch.get_child_blocks(get_root_block(sch))
        found = [block for block in blocks if _reduced(sch, block)]
        if len(found) != 1 or (self._most is not None and not _is_short(_reduced(sch, found[0]), self._most)):
            return None
        try:
            auto_inline_producers(sch, found[0])
            sums_in_threads(sch, found[0])
        except (ScheduleError, AssertionError):
            return None
        return sch


def _reduced(sch: Any, block: Any) -> list[Any]:
    """Return the extents that a block reduces."""
    return [axis.dom.extent for axis in sch.get(block).iter_vars if axis.iter_type == REDUCES]


def _is_short(extents: list[Any], most: int) -> bool:
    return all(isinstance(extent, tirx.IntImm) for extent in extents) and math.prod(map(int, extents)) <= most


def sums_in_threads(sch: Any, block: Any) -> None:
    """Let each thread have one result, and do what is fused behind."""
    for index in range(1, len(sch.get(block).writes)):  # the maximum beside its place
        sch.set_scope(block, index, "local")
    local = sch.cache_write(block, 0, "local")
    auto_inline_consumer_chain(sch, local)
    loops = sch.get_loops(block)
    kinds = [axis.iter_type for axis in sch.get(block).iter_vars]
    results = [loop for loop, kind in zip(loops, kinds, strict=True) if kind != REDUCES]
    reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == REDUCES]
    sch.reorder(*results, *reduced)
    count = sch.get(whole := sch.fuse(*results)).extent
    few = isinstance(count, tirx.IntImm) and int(count) < THREADS  # a single result's copy would lose who is to write
    blocks, threads = sch.split(whole, [None, int(count) if few else THREADS])
    sch.bind(blocks, "blockIdx.x")
    sch.bind(threads, "threadIdx.x")
    sch.reverse_compute_at(local, threads, preserve_unit_loops=True)
    sch.annotate(threads, "pragma_auto_unroll_max_step", 64)
    sch.annotate(threads, "pragma_unroll_explicit", 1)
    sch.decompose_reduction(block, reduced[0])
