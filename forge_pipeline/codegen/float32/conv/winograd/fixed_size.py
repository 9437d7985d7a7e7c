"""Winograd's minimal filtering for 3x3 kernels: F(m x m, 3 x 3) with 16 or 36 products for each m x m results.

What it is stands in `tiles`. Weights are transformed when the library is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np
from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.float32.conv import direct, dynamic_shape, plan
from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.float32.conv.winograd import open_size, weights
from forge_pipeline.codegen.float32.conv.winograd.products import multiply, schedule_products, start_sums
from forge_pipeline.codegen.float32.conv.winograd.tiles import (
    LARGE,
    SMALL,
    Extents,
    Transform,
    image_components,
    inline_epilogue,
    is_possible,
    results,
    schedule_image,
    schedule_results,
)
from forge_pipeline.codegen.layout.builder import Array, Graph, Value
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine, choose_tile

NAME = "winograd"
TOLERANCES = {np.dtype(np.float32): 2e-5, np.dtype(np.float16): 4e-3}
"""Largest error of a convolution's results, relative to the largest of them, that is accepted for speed.

That of halves is three times what `direct` makes of them; F(4 x 4) exceeds it, with whatever points (6e-3 and more).
"""

SAMPLED_TILES, SAMPLED_FILTERS = 8, 16


def emit(graph: Graph, source: Value, weight: Array, geometry: Geometry) -> relax.Expr | None:
    """Emit the convolution if this is expected to be faster than `direct`, and exact enough; the result is blocked."""
    images = dynamic_shape.typical(geometry, graph.typical)
    transform = choose(graph.machine, geometry, weight, images) if graph.rearranges else None
    if transform is None:
        return None
    lanes = graph.machine.lanes
    unit = direct.channels_at_once(geometry.channels, lanes)
    stored = graph.constant(direct.pack_weight(weight, lanes, unit))
    packed = graph.kernel(
        weights.transform, stored, name="winograd_weight", matrix=transform.kernel
    )  # when the library is loaded
    image, settings = graph.blocked(source), {"geometry": geometry, "transform": transform}
    if geometry.is_static and not _goes_by_groups(graph.machine, geometry, transform):
        return graph.kernel(convolve, image, packed, name="conv2d_winograd", **settings)
    channels, oc_blocks = -(-geometry.channels // lanes) * lanes, -(-geometry.filters // lanes)
    group = open_size.choose_group(graph.machine, channels, oc_blocks, transform, images)
    name = "conv2d_winograd_groups" if geometry.is_static else "conv2d_open_winograd"
    return graph.kernel(open_size.convolve, image, packed, name=name, group=group, **settings)


def _goes_by_groups(machine: Machine, geometry: Geometry, transform: Transform) -> bool:
    """Return whether an image is computed as those of open sizes are, tiles counted through.

    Its rows are no whole tiles then, so that it would be transformed at once, which leaves the second cache; and the
    weights stay there, which each group of tiles reads.
    """
    component, tiles = machine.item * transform.size**2 * geometry.channels, math.prod(transform.tiles(geometry))
    is_uneven = geometry.output[0] % transform.step != 0
    return is_uneven and component * geometry.filters <= machine.l2 // 2 < component * tiles


def choose(machine: Machine, geometry: Geometry, weight: Array, images: Sequence[Geometry] = ()) -> Transform | None:
    """Return the transform with the fewest cycles among those that are exact enough, None where `direct` has fewer.

    ``images`` are of typical sizes, where more is known of an open one than that it is one.
    """
    if not is_possible(machine, geometry):
        return None
    sizes = images or dynamic_shape.typical(geometry)
    options = [
        (sum(cycles(machine, size, transform) / plan.cycles(machine, size) for size in sizes), transform)
        for transform in (SMALL, LARGE)
    ]
    for share, transform in sorted(options, key=lambda option: option[0]):
        if share < len(sizes) and error(transform, weight) <= TOLERANCES[weight.dtype]:
            return transform
    return None


def cycles(machine: Machine, geometry: Geometry, transform: Transform) -> float:
    """Return the cycles that one image is expected to take on one core."""
    size, step = transform.size, transform.step
    tiles = math.prod(transform.tiles(geometry))
    oc_blocks, ic_blocks = -(-geometry.filters // machine.lanes), -(-geometry.channels // machine.lanes)
    steps = geometry.channels
    tile = choose_tile(machine, pixels=tiles, vectors=oc_blocks, steps=steps)
    products = machine.fma_cycles(size * size * tiles * oc_blocks * steps) / tile.efficiency
    per_image = machine.fma_cycles(2 * size * int(np.count_nonzero(transform.image))) + 2 * size * size
    per_result = machine.fma_cycles((size + step) * int(np.count_nonzero(transform.result))) + size * size
    reading = machine.streaming_cycles(machine.item * size * size * steps * oc_blocks * machine.lanes)
    return products + tiles * (ic_blocks * per_image + oc_blocks * per_result) + reading


def error(transform: Transform, weight: Array) -> float:
    """Return the largest error on a sample of tiles and filters, relative to the largest result.

    The sample is drawn from a fixed seed, not negative (as behind an activation), and computed in float32, from
    components in the type of ``weight``.
    """
    weight, computed = weight[:SAMPLED_FILTERS], weight.dtype
    random = np.random.default_rng(0)
    image = np.abs(random.standard_normal((SAMPLED_TILES, weight.shape[1], transform.size, transform.size)))
    small = [matrix.astype(np.float32) for matrix in (transform.image, transform.result)]
    kernel = transform_tiles(transform.kernel, weight.astype(np.float64)).astype(computed).astype(np.float32)
    spread = transform_tiles(small[0], image.astype(np.float32)).astype(computed).astype(np.float32)
    products = np.einsum("tcij,fcij->tfij", spread, kernel).astype(computed).astype(np.float32)
    found = transform_tiles(small[1], products)
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(2, 3))
    exact = np.einsum("tcyxij,fcij->tfyx", windows, weight.astype(np.float64))
    return float(np.abs(found - exact).max() / max(np.abs(exact).max(), np.finfo(np.float32).tiny))


def transform_tiles(matrix: Array, tiles: Array) -> Array:
    """Return ``matrix`` times each tile times the matrix transposed, added up in one order.

    Not with ``@``: the order, and so the last bit of a library's weights, would be that of the CPU's BLAS kernel.
    """
    inner = range(matrix.shape[1])
    rows: Array = reduce(np.add, [matrix[:, k, None] * tiles[..., k, None, :] for k in inner])
    return reduce(np.add, [rows[..., k, None] * matrix[:, k] for k in inner])


def convolve(image: te.Tensor, weight: te.Tensor, geometry: Geometry, transform: Transform) -> te.Tensor:
    """Describe the convolution of a blocked image with weights as `weights` makes them."""
    batch, lanes, dtype = image.shape[0], image.shape[4], image.dtype
    oc_blocks, ic_blocks = int(weight.shape[0]), int(image.shape[1])
    transformed = image_components(image, tirx.const(0.0, dtype), dtype, ic_blocks, geometry, transform)
    products = multiply(transformed, weight)
    return te.compute(
        (batch, oc_blocks, *geometry.output, lanes),
        results(products, dtype, geometry, transform),
        name="convolve",
        attrs={primitives.FAMILY: NAME},
    )


def schedule(sch: Schedule, machine: Machine) -> None:
    """Transform a row block of tiles into the second cache, then multiply and transform back some filters at a time."""
    last = inline_epilogue(sch, primitives.find(sch, NAME))
    extents = Extents.of(sch, last)
    row_block = extents.row_block(machine, extents.channels * machine.item // 4)
    tile = choose_tile(machine, pixels=row_block * extents.tiles_w, vectors=extents.oc_blocks, steps=extents.channels)
    shared, oc_out = schedule_results(sch, last, (), extents, row_block, tile.vectors)

    work = extents.multiply_adds // primitives.MULTIPLY_ADDS
    schedule_products(sch, machine, oc_out, tile.pixels, extents.lanes)
    schedule_image(sch, machine, extents, row_block, shared, oc_out, work=work)
    start_sums(sch, extents.lanes)
