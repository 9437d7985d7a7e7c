"""The schedule of products on a GPU: a tile of both operands in shared memory, a tile of results for each thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import get_root_block
from tvm.s_tir.dlight.gpu.base import GPUScheduleRule
from tvm.s_tir.dlight.gpu.matmul import auto_inline_consumer_chain, auto_inline_consumers, auto_inline_producers

from forge_pipeline.codegen.gpu.sums import sums_in_threads

PRODUCT: Final = "forge_product"
"""Annotation of a block (parts, images, rows, columns, steps) to be scheduled so: the tile of a block of threads."""
SUMMED: Final = "summed"
"""The block that adds up parts."""
THREAD: Final = 4
"""Results of a thread along either axis."""
TAPS: Final = 16
"""Steps in shared memory at a time."""


class Products(GPUScheduleRule):  # type: ignore[misc]
    """The rule for blocks with ``PRODUCT``."""

    def apply(self, func: Any, target: Any, _: bool) -> Any:
        """Return a schedule, or None for what is no such product."""
        if not isinstance(func, tirx.PrimFunc) or not self.is_target_available(target):
            return None
        sch = s_tir.Schedule(func)
        found = [block for block in sch.get_child_blocks(get_root_block(sch)) if PRODUCT in sch.get(block).annotations]
        if not found:
            return None
        block = found[0]
        tile = [int(size) for size in sch.get(block).annotations[PRODUCT]]
        summed = [other for other in sch.get_consumers(block) if sch.get(other).name_hint == SUMMED]
        _product_in_tiles(sch, block, tile, is_parted=bool(summed))
        if summed:
            sums_in_threads(sch, summed[0])
        return sch


def _product_in_tiles(sch: Any, block: Any, tile: Sequence[int], *, is_parted: bool) -> None:
    threads = [size // THREAD for size in tile]
    sch.pad_einsum(block, [1, 1, 1, 1, TAPS])
    part, item, filters, pixels, taps = sch.get_loops(block)
    above, vertical, own_filter = sch.split(filters, [None, threads[0], THREAD])
    left, horizontal, own_pixel = sch.split(pixels, [None, threads[1], THREAD])
    outer, inner = sch.split(taps, [None, TAPS])
    sch.reorder(part, item, above, left, vertical, horizontal, outer, inner, own_filter, own_pixel)
    images = sch.fuse(part, item)
    for loop, axis in (
        (images, "blockIdx.z"), (above, "blockIdx.y"), (left, "blockIdx.x"), (vertical, "threadIdx.y"),
        (horizontal, "threadIdx.x"),
    ):  # fmt: skip
        sch.bind(loop, axis)
    sch.annotate(horizontal, "pragma_auto_unroll_max_step", 512)
    sch.annotate(horizontal, "pragma_unroll_explicit", 1)
    local = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(local, horizontal, preserve_unit_loops=True)
    for index in (0, 1):
        shared = sch.cache_read(block, index, "shared")
        count = len(sch.get_loops(shared))
        sch.compute_at(shared, outer, preserve_unit_loops=True)
        whole = sch.fuse(*sch.get_loops(shared)[-count:])
        _, vertical_, horizontal_ = sch.split(whole, [None, threads[0], threads[1]])
        sch.bind(vertical_, "threadIdx.y")
        sch.bind(horizontal_, "threadIdx.x")
        auto_inline_producers(sch, shared)
        own = sch.cache_read(block, index, "local")
        sch.compute_at(own, inner, preserve_unit_loops=True)
        sch.vectorize(sch.get_loops(own)[-1])
    (auto_inline_consumers if is_parted else auto_inline_consumer_chain)(sch, local)
    sch.decompose_reduction(block, outer)
