"""The schedule of products on a GPU: a tile of both operands in shared memory, a tile of results for each thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tvm import s_tir, te, tirx
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


FEW_PROCESSORS: Final = {"sm_53": 1, "sm_62": 2, "sm_72": 8, "sm_87": 16}
"""Jetson Nano, TX2, Xavier and Orin; elsewhere ``MANY``."""
MANY: Final = 96
TILES: Final = ((64, 64), (32, 64), (32, 32), (16, 32))
"""Rows and columns of a block of threads, largest first."""
BUSY: Final = 384
"""Threads of a processor that hide what reads take."""
OPEN: Final = 256
"""What an open size is taken for where tiles and parts are chosen."""
PARTS: Final = (1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The sizes of products: of ``batch`` matrices with ``rows`` and ``columns``, each a sum of ``terms``."""

    batch: int
    rows: int
    columns: int
    terms: int

    def blocks(self, tile: Sequence[int]) -> int:
        """Return how many tiles there are."""
        return self.batch * -(-self.rows // tile[0]) * -(-self.columns // tile[1])


def processors_of(arch: str) -> int:
    """Return how many processors a GPU has: of the large ones, the fewest."""
    return FEW_PROCESSORS.get(arch, MANY)


def known(size: Any) -> int:
    """Return a size, or what an open one is taken for."""
    return int(size) if isinstance(size, int | tirx.IntImm) else OPEN


def parts_of(work: Work, tile: Sequence[int], processors: int) -> int:
    """Return in how many parts the terms are added up, so that there are warps to hide what reads take."""
    threads = work.blocks(tile) * tile[0] * tile[1] // THREAD**2
    fitting = [parts for parts in PARTS if work.terms % (parts * TAPS) == 0 and work.terms // parts >= 8 * TAPS]
    return next((parts for parts in fitting if threads * parts >= BUSY * processors), fitting[-1] if fitting else 1)


def tile_of(work: Work, processors: int) -> tuple[int, int]:
    """Return the largest tile of which there are two for each processor, else the one before the smallest."""
    for tile in TILES[:-1]:
        if work.blocks(tile) >= 2 * processors:
            return tile
    return TILES[-1] if work.rows <= TILES[-1][0] else TILES[-2]


def multiplied(
    left: Callable[[Any, Any, Any], Any],
    right: Callable[[Any, Any, Any], Any],
    sizes: tuple[Any, int, Any, Any],
    tile: Sequence[int],
    parts: int,
    shape: Sequence[Any],
    at: Callable[..., tuple[Any, Any, Any]],
) -> te.Tensor:
    """Describe products for this rule: ``left`` (item, term, row) by ``right`` (item, term, column), beyond edges too.

    ``sizes`` are those of items, terms, rows and columns; ``at`` tells item, row and column of a place in the result,
    whose sizes are ``shape``. Of parts each has as many terms, in whole steps.
    """
    batch, terms, *area = sizes
    own = terms // parts + -(terms // parts) % TAPS
    whole = [(size + (width - 1)) // width * width for size, width in zip(area, tile, strict=True)]

    def reader(read: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
        if own * parts == terms:
            return lambda part, item, number, place: read(item, part * own + number, place)
        return lambda _, item, number, place: tirx.if_then_else(number < terms, read(item, number, place), 0.0)

    lefts = te.compute((parts, batch, own, whole[0]), reader(left), name="left")
    rights = te.compute((parts, batch, own, whole[1]), reader(right), name="right")
    step = te.reduce_axis((0, own), name="term")

    def product(part: Any, item: Any, row: Any, column: Any) -> Any:
        return te.sum(lefts(part, item, step, row) * rights(part, item, step, column), axis=step)

    products = te.compute((parts, batch, *whole), product, name="product", attrs={PRODUCT: list(tile)})
    if parts == 1:
        return te.compute(shape, lambda *place: products(0, *at(*place)), name="products")
    part = te.reduce_axis((0, parts), name="part")
    return te.compute(shape, lambda *place: te.sum(products(part, *at(*place)), axis=part), name=SUMMED)


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
