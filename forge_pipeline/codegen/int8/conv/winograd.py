"""Winograd's filtering for 3x3 kernels in integers: exact, for x86 CPUs, all of which multiply int16 by int16.

The matrices of ``float32.winograd.tiles``, with kernel rows multiplied until they are integers, make results
``multiple`` times too large. All that is added up is taken modulo 2^32, where a division by an odd number is a
multiplication and one by a power of two a shift, as long as the true result leaves room for it (``Transform.fits``
proves that from the weights). So nothing is rounded before the result is stored, and it equals the direct convolution's
bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.float32.conv.winograd import tiles as winograd_tiles
from forge_pipeline.codegen.float32.conv.winograd.tiles import (
    Extents,
    image_components,
    inline_epilogue,
    is_possible,
    results,
    schedule_image,
    schedule_results,
)
from forge_pipeline.codegen.int8.isa.dot_product import BYTES, DotProduct, products, tensorize
from forge_pipeline.codegen.int8.isa.table import dot_product, instruction_set
from forge_pipeline.codegen.int8.requantize import Epilogue
from forge_pipeline.codegen.int8.x86 import narrow_store
from forge_pipeline.codegen.layout.affine import LEVELS
from forge_pipeline.codegen.layout.builder import Array, Graph, Value
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine, divisors

INT32_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform(winograd_tiles.Transform):
    """F(m x m, 3 x 3) with integers; results are ``odd << shift`` times too large."""

    odd: int
    shift: int

    def of_kernel(self, weight: Array) -> Array:
        """Return (filters, channels, 3, 3), transformed."""
        return self.kernel @ weight.astype(np.int64) @ self.kernel.T

    def fits(self, weight: Array) -> bool:
        """Whether transformed weights fit int16, and every sum of products by bytes what the shift leaves of int32."""
        largest = int(np.abs(weight.astype(np.int64)).sum(axis=(1, 2, 3)).max(initial=0)) * LEVELS
        inside = int(np.abs(self.of_kernel(weight)).max(initial=0)) < 1 << 15
        return inside and largest < 1 << (INT32_BITS - 1 - self.shift)


def _in_integers(real: winograd_tiles.Transform, multiples: tuple[int, ...]) -> Transform:
    """Return ``real`` with the rows of its kernel matrix multiplied until they are whole numbers.

    The result's matrix makes up for what a row is multiplied by less than the others.
    """
    rows = np.array(multiples, np.int64)
    largest = int(rows.max())
    shift = (largest**2 & -(largest**2)).bit_length() - 1
    return Transform(
        image=real.image.astype(np.int64),
        kernel=np.rint(real.kernel * rows[:, None]).astype(np.int64),
        result=real.result.astype(np.int64) * (largest // rows),
        odd=largest**2 >> shift,
        shift=shift,
    )


SMALL = _in_integers(winograd_tiles.SMALL, (2, 2, 2, 2))
LARGE = _in_integers(winograd_tiles.LARGE, (24, 24, 24, 24, 24, 1))


NAME = "int8_winograd"
EFFICIENCY, WHOLE_EFFICIENCY = 0.75, 0.93
"""Part of the multiplier's peak that products reach, transformed or not: of two instructions a step, and of one."""

ISSUED = 3
"""Instructions of a transformation that a core starts in a cycle."""


def emit(
    graph: Graph, source: Value, zero: int, weight: Array, geometry: Geometry, epilogue: Epilogue
) -> relax.Expr | None:
    """Emit the convolution if this is expected to be faster than the direct one; the result is blocked."""
    machine = graph.machine
    transform = choose(machine, geometry, weight)
    if transform is None:
        return None
    lanes = machine.lanes
    packed = pack_weight(weight, lanes, _int16(machine).k_inner, transform)
    return graph.kernel(
        convolve, graph.blocked(source), graph.constant(packed), *epilogue.constants(graph, (packed.shape[0], lanes)),
        name="conv2d_u8_winograd", geometry=geometry, zero=zero, epilogue=epilogue, transform=transform,
        dot=_int16(machine),
    )  # fmt: skip


def _int16(machine: Machine) -> DotProduct:
    """Return what multiplies int16 by int16, where ``choose`` has found that there is something."""
    dot = instruction_set(machine).int16
    assert dot is not None  # noqa: S101 - as said
    return dot


def choose(machine: Machine, geometry: Geometry, weight: Array) -> Transform | None:
    """Return the transform with the fewest cycles among those that fit, None where the direct convolution has fewer."""
    if instruction_set(machine).int16 is None or not (geometry.is_static and is_possible(machine, geometry)):
        return None
    options = [option for option in (SMALL, LARGE) if _stores_whole_tiles(machine, geometry, option)]
    options = sorted(options, key=lambda transform: cycles(machine, geometry, transform))
    limit = cycles(machine, geometry, None)
    for transform in options:
        if cycles(machine, geometry, transform) < limit and transform.fits(weight):
            return transform
    return None


def _stores_whole_tiles(machine: Machine, geometry: Geometry, transform: Transform) -> bool:
    """Return whether results at the edge ask no questions, or sums take so long that it is no matter."""
    return not dot_product(machine).is_single or not any(extent % transform.step for extent in geometry.output)


def cycles(machine: Machine, geometry: Geometry, transform: Transform | None) -> float:
    """Return the cycles that one image is expected to take on one core; None stands for the direct convolution."""
    out_h, out_w = geometry.output
    oc_blocks, ic_blocks = -(-geometry.filters // machine.lanes), -(-geometry.channels // machine.lanes)
    dot = dot_product(machine)
    efficiency = WHOLE_EFFICIENCY if dot.is_single else EFFICIENCY

    def per_product(by: DotProduct) -> float:
        return oc_blocks * ic_blocks * machine.lanes / by.k_inner / machine.fma_ports / efficiency

    weights = oc_blocks * ic_blocks * machine.lanes**2
    if transform is None:
        return out_h * out_w * 9 * per_product(dot) + machine.streaming_cycles(9 * weights)
    size, step = transform.size, transform.step
    tiles = math.prod(transform.tiles(geometry))
    per_image = (2 * size * int(np.count_nonzero(transform.image)) + 2 * size * size) / ISSUED
    per_result = ((size + step) * int(np.count_nonzero(transform.result)) * 1.5 + size * size) / ISSUED
    reading = machine.streaming_cycles(2 * size * size * weights)
    products = size * size * per_product(_int16(machine))
    return tiles * (products + ic_blocks * per_image + oc_blocks * per_result) + reading


def pack_weight(weight: Array, lanes: int, k_inner: int, transform: Transform) -> Array:
    """Return (filters, channels, 3, 3), transformed: (oc_blocks, i, j, ic_blocks, lanes / k_inner, lanes, k_inner)."""
    filters, channels, _, _ = weight.shape
    oc_blocks, ic_blocks = -(-filters // lanes), -(-channels // lanes)
    size = transform.size
    full = np.zeros((oc_blocks * lanes, ic_blocks * lanes, size, size), np.int16)
    full[:filters, :channels] = transform.of_kernel(weight)
    split = full.reshape(oc_blocks, lanes, ic_blocks, lanes // k_inner, k_inner, size, size)
    return np.ascontiguousarray(split.transpose(0, 5, 6, 2, 3, 1, 4))


def convolve(
    image: te.Tensor, weight: te.Tensor, bias: te.Tensor, factor: te.Tensor, *float_bias: te.Tensor,
    geometry: Geometry, zero: int, epilogue: Epilogue, transform: Transform, dot: DotProduct,
) -> te.Tensor:  # fmt: skip
    """Describe the convolution of a blocked image with weights as ``pack_weight`` makes them."""
    batch, lanes = image.shape[0], image.shape[4]
    oc_blocks, size, _, ic_blocks, k_outers, _, _ = (int(extent) for extent in weight.shape)
    transformed = image_components(image, tirx.const(zero, "uint8"), "int16", ic_blocks, geometry, transform)
    block, k_outer = te.reduce_axis((0, ic_blocks), "block"), te.reduce_axis((0, k_outers), "k_outer")
    k_inner = te.reduce_axis((tirx.const(0, "int64"), tirx.const(dot.k_inner, "int64")), "k_inner")
    sums = te.compute(
        (batch, oc_blocks, size, size, transformed.shape[4], lanes),
        lambda n, oc_block, i, j, t, out: te.sum(
            products(
                transformed[n, i, j, block, t, k_outer * dot.k_inner + k_inner],
                weight[oc_block, i, j, block, k_outer, out, k_inner],
            ),
            axis=[block, k_outer, k_inner],
        ),
        name="products",
    )
    result = results(sums, "uint32", geometry, transform)
    inverse = tirx.const(pow(transform.odd, -1, 1 << INT32_BITS), "uint32")

    def total(n: Any, oc_block: Any, h: Any, w: Any, out: Any) -> Any:
        value = result(n, oc_block, h, w, out)
        return (value * inverse if transform.odd > 1 else value).astype("int32") >> transform.shift

    if dot.multiplies + dot.others > 1:
        epilogue = replace(epilogue, bounded=False)  # one by one: whether packing pays here was not measured
    return narrow_store.requantize(
        (batch, oc_blocks, *geometry.output, lanes),
        epilogue,
        total,
        lambda _n, oc_block, _h, _w, out: (term(oc_block, out) for term in (bias, factor, *float_bias)),
        family=NAME,
    )


def choose_tile(machine: Machine, pixels: int, rows: int) -> tuple[int, int]:
    """Return pixels and vectors of a tile that divide what there is: ``tensorize`` takes no partial one."""
    dot = _int16(machine)
    fitting = [
        (dot.step_cycles(machine, mr, nr) / (mr * nr), -mr * nr, mr, nr)
        for nr in divisors(rows, 4)
        for mr in divisors(pixels, machine.registers)
        if dot.fits(machine, mr, nr)
    ]
    return min(fitting)[2:]


def schedule(sch: Schedule, machine: Machine) -> None:
    """Transform a row block of tiles into the second cache, then multiply and transform back some filters at a time."""
    last = inline_epilogue(sch, primitives.find(sch, NAME))
    packed = narrow_store.is_packed(sch, last)
    real = [block for block in primitives.blocks(sch) if sch.get(block).name_hint == narrow_store.REAL]
    for block in () if packed else real:
        sch.compute_inline(block)

    extents = Extents.of(sch, last)
    row_block = extents.row_block(machine, extents.channels // 2)
    mr, nr = choose_tile(machine, row_block * extents.tiles_w, extents.oc_blocks)
    shared, oc_out = schedule_results(sch, last, real if packed else (), extents, row_block, nr)

    sums = sch.get_sblock("products")
    sch.compute_at(sums, oc_out, preserve_unit_loops=True)
    copy = sch.cache_write(sums, 0, "local")
    _, oc_in, i, j, pixel, out, block, k_outer, k_inner = sch.get_loops(sums)[2:]
    pixel_out, pixel_in = sch.split(pixel, [None, mr])
    sch.reorder(i, j, pixel_out, block, k_outer, pixel_in, oc_in, out, k_inner)
    sch.reverse_compute_at(copy, pixel_out)
    for loop in (k_outer, pixel_in, oc_in):
        sch.unroll(loop)
    depth = len(sch.get_loops(sums)) - 6
    primitives.vectorize_and_unroll(sch, copy, below=depth, lanes=extents.lanes)

    schedule_image(sch, machine, extents, row_block, shared, oc_out, work=extents.multiply_adds)
    primitives.vectorize_and_unroll(sch, sch.decompose_reduction(sums, block), below=depth, lanes=extents.lanes)
    tensorize(sch, out, machine, _int16(machine), BYTES, weights="int16")
