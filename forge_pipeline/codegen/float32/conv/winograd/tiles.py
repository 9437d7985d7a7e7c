"""What Winograd's filtering is whatever it computes with: matrices, tiles, their transforms and schedules.

F(m x m, 3 x 3) of Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015); the matrices below are
theirs. A row block of tiles is transformed, multiplied by the transformed weights as one matrix product for each of
the (m + 2)^2 components, and transformed back into the tile that what follows reads. How the products are computed is
for `winograd` (floats) and `int8.conv.winograd` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from forge_pipeline.codegen.float32.conv.geometry import Geometry, simplify
from forge_pipeline.codegen.layout.builder import Array
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine, divisors

ENOUGH = 16
"""Channels that are worth transforming, though a vector of halves has room for more."""

STAGES = ("tiles", "image_vertical", "image_both", "products", "result_vertical", "result_both")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """F(m x m, 3 x 3): ``image`` is B^T, ``kernel`` G, ``result`` A^T of the paper."""

    image: Array
    kernel: Array
    result: Array

    @property
    def step(self) -> int:
        """Results of a tile along each axis: m."""
        return int(self.result.shape[0])

    @property
    def size(self) -> int:
        """Pixels that a tile reads along each axis: m + 2."""
        return int(self.result.shape[1])

    def tiles(self, geometry: Geometry) -> tuple[int, int]:
        """Return how many tiles cover the output, down and across; expressions where its size is open."""
        out_h, out_w = geometry.output
        return simplify(divided(out_h, self.step)), simplify(divided(out_w, self.step))


def divided(extent: Any, by: int) -> Any:
    """Return how many parts of ``by`` cover an extent."""
    return (extent + (by - 1)) // by


SMALL = Transform(
    image=np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], np.float64),
    kernel=np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float64),
    result=np.array([[1, 1, 1, 0], [0, 1, -1, -1]], np.float64),
)
LARGE = Transform(
    image=np.array(
        [
            [4, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ],
        np.float64,
    ),
    kernel=np.array(
        [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]],
        np.float64,
    )
    / 24,
    result=np.array(
        [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
        np.float64,
    ),
)


def is_possible(machine: Machine, geometry: Geometry) -> bool:
    """Return whether a convolution has dense 3x3 kernels, and channels to fill the lanes, or enough of them."""
    return (
        geometry.kernel == (3, 3)
        and set(geometry.strides) == set(geometry.dilation) == {1}
        and geometry.groups == 1
        and geometry.channels >= min(machine.lanes, ENOUGH)
    )


def combine(matrix: Array, row: Any, dtype: str, read: Callable[[int], Any]) -> Any:
    """Return sum(matrix[row, k] * read(k)) for a loop variable ``row``; unrolled, its terms of zero vanish.

    In an unsigned type the sum is taken modulo its range.
    """
    total = None
    for column in range(matrix.shape[1]):
        factor = tirx.const(0, dtype)
        for index, entry in enumerate(matrix[:, column]):
            if entry:
                number = int(entry) % (1 << 32) if dtype == "uint32" else entry.item()
                factor = tirx.Select(row == index, tirx.const(number, dtype), factor)
        term = read(column) * factor
        total = term if total is None else total + term
    return total


def image_components(
    image: te.Tensor,
    pad: Any,
    dtype: str,
    blocks: int,
    geometry: Geometry,
    transform: Transform,
    group: int = 0,
    taken: Any = 0,
) -> te.Tensor:
    """Describe a blocked image, ``pad`` around it, as components (batch, i, j, blocks, tiles, lanes) of ``dtype``.

    With a ``group``, tiles are counted apart: (batch, groups, i, j, blocks, group, lanes), ``taken`` of them in each.
    """
    batch, _, height, width, lanes = image.shape
    step, size = transform.step, transform.size
    top, left, _, _ = geometry.padding
    tiles_h, tiles_w = transform.tiles(geometry)
    number = group or tiles_h * tiles_w
    outer = (batch, simplify(divided(tiles_h * tiles_w, taken))) if group else (batch,)

    def pixel(n: Any, *at: Any) -> Any:
        *before, block, t, a, b, lane = at
        tile = before[0] * taken + t if group else t
        y, x = tile // tiles_w * step + a - top, tile % tiles_w * step + b - left
        inside = tirx.all(y >= 0, y < height, x >= 0, x < width)
        return tirx.if_then_else(inside, image[n, block, y, x, lane], pad).astype(dtype)

    def down(*at: Any) -> Any:
        *tile, i, b, lane = at
        return combine(transform.image, i, dtype, lambda a: tiles(*tile, a, b, lane))

    def across(*at: Any) -> Any:
        *before, i, j, c, t, lane = at
        return combine(transform.image, j, dtype, lambda b: vertical(*before, c, t, i, b, lane))

    tiles = te.compute((*outer, blocks, number, size, size, lanes), pixel, name=STAGES[0])
    vertical = te.compute((*outer, blocks, number, size, size, lanes), down, name=STAGES[1])
    return te.compute((*outer, size, size, blocks, number, lanes), across, name=STAGES[2])


def result_tiles(
    outer: Sequence[Any], lanes: Any, read: Callable[..., Any], dtype: str, transform: Transform
) -> te.Tensor:
    """Describe results (*outer, m, m, lanes), in ``dtype``, of components that ``read(*outer, i, j, lane)`` gives."""
    step, size = transform.step, transform.size

    def down(*at: Any) -> Any:
        *tile, y, j, lane = at
        return combine(transform.result, y, dtype, lambda i: read(*tile, i, j, lane).astype(dtype))

    def across(*at: Any) -> Any:
        *row, x, lane = at
        return combine(transform.result, x, dtype, lambda j: half(*row, j, lane))

    half = te.compute((*outer, step, size, lanes), down, name=STAGES[4])
    return te.compute((*outer, step, step, lanes), across, name=STAGES[5])


def results(products: te.Tensor, dtype: str, geometry: Geometry, transform: Transform) -> Callable[..., Any]:
    """Describe components transformed back, in ``dtype``; return what gives the result at (n, row, h, w, lane)."""
    batch, rows, _, _, _, lanes = products.shape
    step = transform.step
    tiles_h, tiles_w = transform.tiles(geometry)

    def component(n: Any, oc_block: Any, th: Any, tw: Any, i: Any, j: Any, lane: Any) -> Any:
        return products[n, oc_block, i, j, th * tiles_w + tw, lane]

    result = result_tiles((batch, rows, tiles_h, tiles_w), lanes, component, dtype, transform)
    return lambda n, oc_block, h, w, out: result[n, oc_block, h // step, w // step, h % step, w % step, out]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extents:
    """The sizes of a convolution that is scheduled; filters and channels are in blocks of ``lanes``."""

    tiles_h: int
    tiles_w: int
    step: int
    size: int
    oc_blocks: int
    ic_blocks: int
    lanes: int
    out_h: int

    @classmethod
    def of(cls, sch: Schedule, last: SBlockRV) -> Extents:
        """Read them off the blocks; ``last`` writes the output."""
        both, products, half, result = (sch.get_sblock(name) for name in STAGES[2:])
        tiles_h, tiles_w, step = (primitives.static(sch, loop) for loop in sch.get_loops(result)[2:5])
        size = primitives.static(sch, sch.get_loops(half)[5])
        _, oc_blocks, _, _, _, lanes = (primitives.extent(sch, loop) or 1 for loop in sch.get_loops(products)[:6])
        ic_blocks = primitives.static(sch, sch.get_loops(both)[3])
        return cls(
            tiles_h=tiles_h, tiles_w=tiles_w, step=step, size=size, oc_blocks=oc_blocks, ic_blocks=ic_blocks,
            lanes=lanes,
            out_h=primitives.static(sch, sch.get_loops(last)[2]),
        )  # fmt: skip

    @property
    def channels(self) -> int:
        """Channels, the last block full."""
        return self.ic_blocks * self.lanes

    @property
    def filters(self) -> int:
        """Filters, the last block full."""
        return self.oc_blocks * self.lanes

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of all products."""
        return self.filters * self.channels * self.tiles_h * self.tiles_w * self.size * self.size

    def row_block(self, machine: Machine, channels: int) -> int:
        """Return the rows of tiles that are transformed, multiplied and transformed back before the next.

        ``channels``: as many as take the image's room in float32. The transformed image is to stay in half of the
        second cache, as the weights are read again with each row block. Where these stay there too, an eighth leaves
        room for them and for the products (of 2 MiB: 0.79 to 0.92 of the time), and there are row blocks for all cores.
        """
        if self.out_h % self.step:
            return self.tiles_h
        pixel, rows = 4 * self.size * self.size * channels, divisors(self.tiles_h, self.tiles_h)
        weights_stay = pixel * self.filters <= machine.l2 // 2
        room = machine.l2 // (8 if weights_stay else 2)
        fitting = [count for count in rows if pixel * self.tiles_w * count <= room]
        if weights_stay:
            fitting = [count for count in fitting if self.tiles_h // count >= machine.cores] or fitting
        return max(fitting or [1])


def schedule_results(
    sch: Schedule, last: SBlockRV, behind: Sequence[SBlockRV], extents: Extents, row_block: int, vectors: int
) -> tuple[LoopRV, LoopRV]:
    """Transform back, with the blocks ``behind``, where ``last`` writes: ``vectors`` of filters and one tile at a time.

    Return the loops over row blocks, and over the filters of one.
    """
    step, lanes = extents.step, extents.lanes
    half, result = (sch.get_sblock(name) for name in STAGES[4:])
    n, oc, h, w, out = sch.get_loops(last)
    row_blocks, h = sch.split(h, [None, row_block * step] if row_block < extents.tiles_h else [1, None])
    oc_out, oc_in = sch.split(oc, [None, vectors])
    h_tile, h_in = sch.split(h, [None, step])
    w_tile, w_in = sch.split(w, [None, step])
    sch.reorder(n, row_blocks, oc_out, h_tile, w_tile, oc_in, h_in, w_in, out)
    shared = primitives.fuse(sch, [n, row_blocks])
    for block in (*behind, result, half):
        sch.compute_at(block, oc_in, preserve_unit_loops=True)
        sch.set_scope(block, 0, "local")
    for block in (last, *behind, result, half):
        primitives.vectorize_and_unroll(sch, block, below=5, lanes=lanes)
    return shared, oc_out


def schedule_image(
    sch: Schedule, machine: Machine, extents: Extents, row_block: int, shared: LoopRV, oc_out: LoopRV, *, work: int
) -> None:
    """Transform the image of a row block, a tile at a time, and share out ``work``; see `parallel_if_worth`."""
    c, _ = place_image(sch, shared, extents.lanes)
    primitives.vectorize_and_unroll(sch, sch.get_sblock(STAGES[0]), below=4, lanes=extents.lanes)
    if extents.tiles_h // row_block >= machine.cores:
        primitives.parallel_if_worth(sch, shared, work)
    else:  # too few row blocks: share the filters, and before them the channels
        tiles_work = extents.channels * extents.tiles_h * extents.tiles_w * extents.size * extents.size
        primitives.parallel_if_worth(sch, oc_out, work)
        primitives.parallel_if_worth(sch, c, tiles_work)


def place_image(sch: Schedule, shared: LoopRV, lanes: int) -> tuple[LoopRV, LoopRV]:
    """Transform the image inside ``shared``, a tile at a time; return the loops over blocks of channels and tiles.

    How the pixels of a tile are read is left to do.
    """
    tiles, vertical, transformed = (sch.get_sblock(name) for name in STAGES[:3])
    sch.compute_at(transformed, shared, preserve_unit_loops=True)
    i, j, c, pixel, lane = sch.get_loops(transformed)[-5:]
    sch.reorder(c, pixel, i, j, lane)
    for producer in (vertical, tiles):
        sch.compute_at(producer, pixel, preserve_unit_loops=True)
        sch.set_scope(producer, 0, "local")
    for producer in (vertical, transformed):
        primitives.vectorize_and_unroll(sch, producer, below=len(sch.get_loops(transformed)) - 3, lanes=lanes)
    return c, pixel


def inline_epilogue(sch: Schedule, anchor: SBlockRV) -> SBlockRV:
    """Inline the convolution's own last block, and what was fused behind it, into the block that writes the output."""
    names = [sch.get(block).name_hint for block in primitives.blocks(sch)]
    behind = primitives.blocks(sch)[names.index(sch.get(anchor).name_hint) :]
    for block in behind[:-1]:
        sch.compute_inline(block)
    return behind[-1]
