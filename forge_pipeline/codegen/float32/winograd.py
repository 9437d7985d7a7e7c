"""Winograd's minimal filtering for 3x3 kernels: F(m x m, 3 x 3) with 16 or 36 products for each m x m results.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015); the matrices below are theirs. Weights are
transformed when the model is built. At run time a band of tiles is transformed, multiplied by the weights as one
matrix product for each of the (m + 2)^2 components, and transformed back into the tile that what follows reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from forge_pipeline.codegen.float32 import direct, winograd_weight
from forge_pipeline.codegen.float32.conv_geometry import Geometry
from forge_pipeline.codegen.layout.builder import Array, Graph, Value
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine, choose_tile, divisors

if TYPE_CHECKING:
    from tvm import relax, te
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import SBlockRV

NAME = "winograd"
STAGES = ("tiles", "image_vertical", "image_both", "products", "result_vertical", "result_both")
TOLERANCE = 2e-5
"""Largest error of a convolution's results, relative to the largest of them, that is accepted for speed."""

SAMPLED_TILES, SAMPLED_FILTERS = 8, 16


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


def emit(graph: Graph, source: Value, weight: Array, geometry: Geometry) -> relax.Expr | None:
    """Emit the convolution if this is expected to be faster than `direct`, and exact enough; the result is blocked."""
    transform = choose(graph.machine, geometry, weight) if graph.rearranges else None
    if transform is None:
        return None
    stored = graph.constant(direct.pack_weight(weight, graph.machine.lanes, block_channels=True))
    packed = graph.kernel(
        winograd_weight.transform, stored, name="winograd_weight", matrix=transform.kernel
    )  # when the library is loaded
    return graph.kernel(
        convolve, graph.blocked(source), packed, name="conv2d_winograd", geometry=geometry, transform=transform
    )


def choose(machine: Machine, geometry: Geometry, weight: Array) -> Transform | None:
    """Return the transform with the fewest cycles among those that are exact enough, None where `direct` has fewer."""
    if (
        not geometry.is_sized
        or geometry.kernel != (3, 3)
        or set(geometry.strides) != {1}
        or set(geometry.dilation) != {1}
    ):
        return None
    if geometry.groups != 1 or geometry.channels < machine.lanes:
        return None
    options = sorted((SMALL, LARGE), key=lambda transform: cycles(machine, geometry, transform))
    limit = direct.cycles(machine, geometry)
    for transform in options:
        if cycles(machine, geometry, transform) < limit and error(transform, weight) <= TOLERANCE:
            return transform
    return None


def cycles(machine: Machine, geometry: Geometry, transform: Transform) -> float:
    """Return the cycles that one image is expected to take on one core."""
    size, step = transform.size, transform.step
    tall, wide = geometry.output
    tiles = -(-tall // step) * -(-wide // step)
    rows, blocks = -(-geometry.filters // machine.lanes), -(-geometry.channels // machine.lanes)
    steps = blocks * machine.lanes
    tile = choose_tile(machine, pixels=tiles, vectors=rows, steps=steps)
    products = machine.fma_cycles(size * size * tiles * rows * steps) / tile.efficiency
    per_image = machine.fma_cycles(2 * size * int(np.count_nonzero(transform.image))) + 2 * size * size
    per_result = machine.fma_cycles((size + step) * int(np.count_nonzero(transform.result))) + size * size
    reading = machine.streaming_cycles(4 * size * size * steps * rows * machine.lanes)
    return products + tiles * (blocks * per_image + rows * per_result) + reading


def error(transform: Transform, weight: Array) -> float:
    """Return the largest error on a sample of tiles and filters, relative to the largest result.

    The sample is drawn from a fixed seed, not negative (as behind an activation), and computed in float32.
    """
    weight = weight[:SAMPLED_FILTERS]
    random = np.random.default_rng(0)
    image = np.abs(random.standard_normal((SAMPLED_TILES, weight.shape[1], transform.size, transform.size)))
    small = [matrix.astype(np.float32) for matrix in (transform.image, transform.result)]
    kernel = transformed(transform.kernel, weight.astype(np.float64)).astype(np.float32)
    spread = transformed(small[0], image.astype(np.float32))
    found = transformed(small[1], np.einsum("tcij,fcij->tfij", spread, kernel))
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(2, 3))
    exact = np.einsum("tcyxij,fcij->tfyx", windows, weight.astype(np.float64))
    return float(np.abs(found - exact).max() / max(np.abs(exact).max(), np.finfo(np.float32).tiny))


def transformed(matrix: Array, tiles: Array) -> Array:
    """Return ``matrix`` times each tile times the matrix transposed, added up in one order.

    Not with ``@``: the order, and so the last bit of a library's weights, would be that of the CPU's BLAS kernel.
    """
    inner = range(matrix.shape[1])
    rows: Array = reduce(np.add, [matrix[:, k, None] * tiles[..., k, None, :] for k in inner])
    return reduce(np.add, [rows[..., k, None] * matrix[:, k] for k in inner])


def pack_weight(weight: Array, lanes: int, transform: Transform) -> Array:
    """Return (filters, channels, 3, 3), transformed, as (filters / lanes, i, j, channels / lanes, lanes, lanes)."""
    filters, channels, _, _ = weight.shape
    rows, blocks = -(-filters // lanes), -(-channels // lanes)
    size = transform.size
    full = np.zeros((rows * lanes, blocks * lanes, size, size), np.float32)
    full[:filters, :channels] = transformed(transform.kernel, weight.astype(np.float64))
    return full.reshape(rows, lanes, blocks, lanes, size, size).transpose(0, 4, 5, 2, 3, 1)


def _coefficient(matrix: Array, row: Any, column: int) -> Any:
    """Return ``matrix[row, column]`` for a loop variable ``row``; a number once that loop is unrolled."""
    from tvm import tirx

    value = tirx.const(0.0, "float32")
    for index, entry in enumerate(matrix[:, column]):
        if entry:
            value = tirx.Select(row == index, tirx.const(float(entry), "float32"), value)
    return value


def _combine(matrix: Array, row: Any, read: Any) -> Any:
    """Return sum(matrix[row, k] * read(k)); terms of zero vanish when the loop of ``row`` is unrolled."""
    total = None
    for column in range(matrix.shape[1]):
        term = read(column) * _coefficient(matrix, row, column)
        total = term if total is None else total + term
    return total


def convolve(image: te.Tensor, weight: te.Tensor, geometry: Geometry, transform: Transform) -> te.Tensor:
    """Describe the convolution of a blocked image with weights as ``pack_weight`` makes them."""
    from tvm import te, tirx

    batch, _, height, width, lanes = image.shape
    rows, size, _, blocks, _, _ = (int(extent) for extent in weight.shape)
    step = transform.step
    top, left, _, _ = geometry.padding
    tall, wide = geometry.output
    down, along = -(-tall // step), -(-wide // step)

    def pixel(n: Any, block: Any, t: Any, a: Any, b: Any, lane: Any) -> Any:
        y, x = t // along * step + a - top, t % along * step + b - left
        inside = tirx.all(y >= 0, y < height, x >= 0, x < width)
        return tirx.if_then_else(inside, image[n, block, y, x, lane], tirx.const(0.0, "float32"))

    tiles = te.compute((batch, blocks, down * along, size, size, lanes), pixel, name="tiles")
    vertical = te.compute(
        (batch, blocks, down * along, size, size, lanes),
        lambda n, c, t, i, b, lane: _combine(transform.image, i, lambda a: tiles[n, c, t, a, b, lane]),
        name="image_vertical",
    )
    transformed = te.compute(
        (batch, size, size, blocks, down * along, lanes),
        lambda n, i, j, c, t, lane: _combine(transform.image, j, lambda b: vertical[n, c, t, i, b, lane]),
        name="image_both",
    )
    block, channel = te.reduce_axis((0, blocks), "block"), te.reduce_axis((0, lanes), "channel")
    products = te.compute(
        (batch, rows, size, size, down * along, lanes),
        lambda n, row, i, j, t, out: te.sum(
            transformed[n, i, j, block, t, channel] * weight[row, i, j, block, channel, out],
            axis=[block, channel],
        ),
        name="products",
    )
    half = te.compute(
        (batch, rows, down, along, step, size, lanes),
        lambda n, row, th, tw, y, j, out: _combine(
            transform.result, y, lambda i: products[n, row, i, j, th * along + tw, out]
        ),
        name="result_vertical",
    )
    result = te.compute(
        (batch, rows, down, along, step, step, lanes),
        lambda n, row, th, tw, y, x, out: _combine(transform.result, x, lambda j: half[n, row, th, tw, y, j, out]),
        name="result_both",
    )
    return te.compute(
        (batch, rows, tall, wide, lanes),
        lambda n, row, h, w, out: result[n, row, h // step, w // step, h % step, w % step, out],
        name="convolve",
        attrs={primitives.FAMILY: NAME},
    )


def schedule(sch: Schedule, machine: Machine) -> None:
    """Transform a band of tiles into the second cache, then multiply and transform back some filters at a time."""
    anchor = primitives.find(sch, NAME)
    tiles, vertical, transformed, products, half, result = (sch.get_sblock(name) for name in STAGES)
    last = inline_epilogue(sch, anchor)

    down, along, step = (primitives.static(sch, loop) for loop in sch.get_loops(result)[2:5])
    size = primitives.static(sch, sch.get_loops(half)[5])
    _, rows, _, _, _, lanes, blocks, _ = (primitives.extent(sch, loop) or 1 for loop in sch.get_loops(products))
    height = primitives.static(sch, sch.get_loops(last)[2])
    band = band_rows(
        machine, down=down, along=along, channels=blocks * lanes, filters=rows * lanes, size=size,
        exact=height % step == 0,
    )  # fmt: skip
    tile = choose_tile(machine, pixels=band * along, vectors=rows, steps=blocks * lanes)

    n, row, h, w, out = sch.get_loops(last)
    bands, h = sch.split(h, [None, band * step] if band < down else [1, None])
    row_out, row_in = sch.split(row, [None, tile.vectors])
    h_tile, h_in = sch.split(h, [None, step])
    w_tile, w_in = sch.split(w, [None, step])
    sch.reorder(n, bands, row_out, h_tile, w_tile, row_in, h_in, w_in, out)
    shared = primitives.fuse(sch, [n, bands])

    for block in (result, half):
        sch.compute_at(block, row_in, preserve_unit_loops=True)
        sch.set_scope(block, 0, "local")
    for block in (last, result, half):
        primitives.vectorize_and_unroll(sch, block, below=5, lanes=lanes)

    sch.compute_at(products, row_out, preserve_unit_loops=True)
    copy = sch.cache_write(products, 0, "local")
    _, row_in, i, j, pixel, out, block, channel = sch.get_loops(products)[2:]
    pixel_out, pixel_in = sch.split(pixel, [None, tile.pixels])
    sch.reorder(i, j, pixel_out, block, channel, pixel_in, row_in, out)
    sch.reverse_compute_at(copy, pixel_out)
    sch.vectorize(out)
    sch.unroll(pixel_in)
    sch.unroll(row_in)
    depth = len(sch.get_loops(products)) - 5
    primitives.vectorize_and_unroll(sch, copy, below=depth, lanes=lanes)

    sch.compute_at(transformed, shared, preserve_unit_loops=True)
    _, i, j, c, pixel, lane = sch.get_loops(transformed)[1:]
    sch.reorder(c, pixel, i, j, lane)
    for producer in (vertical, tiles):
        sch.compute_at(producer, pixel, preserve_unit_loops=True)
        sch.set_scope(producer, 0, "local")
    for producer in (tiles, vertical, transformed):
        primitives.vectorize_and_unroll(sch, producer, below=4, lanes=lanes)
    work = rows * lanes * blocks * lanes * down * along * size * size // primitives.MULTIPLY_ADDS
    if down // band >= machine.cores:
        primitives.parallel_if_worth(sch, shared, work)
    else:  # too few bands: share the filters, and before them the channels
        primitives.parallel_if_worth(sch, row_out, work)
        primitives.parallel_if_worth(sch, c, blocks * lanes * down * along * size * size)
    primitives.vectorize_and_unroll(sch, sch.decompose_reduction(products, block), below=depth, lanes=lanes)


def inline_epilogue(sch: Schedule, anchor: SBlockRV) -> SBlockRV:
    """Inline the convolution's own last block, and what was fused behind it, into the block that writes the output."""
    names = [sch.get(block).name_hint for block in primitives.blocks(sch)]
    behind = primitives.blocks(sch)[names.index(sch.get(anchor).name_hint) :]
    for block in behind[:-1]:
        sch.compute_inline(block)
    return behind[-1]


def band_rows(machine: Machine, *, down: int, along: int, channels: int, filters: int, size: int, exact: bool) -> int:
    """Return the rows of tiles in a band, whose transformed image is to stay in half of the second cache.

    Where the weights stay there too, and may be read again by each band, there are bands for all cores.
    """
    if not exact:
        return down
    room = machine.l2 // 2
    fitting = [rows for rows in divisors(down, down) if 4 * size * size * channels * along * rows <= room]
    if 4 * size * size * channels * filters <= room:
        fitting = [rows for rows in fitting if down // rows >= machine.cores] or fitting
    return max(fitting or [1])
