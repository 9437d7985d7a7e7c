"""Which tile of sums a convolution of bytes holds in registers, by cycles expected."""

from __future__ import annotations

from dataclasses import dataclass

from forge_pipeline.codegen.float32.conv.dynamic_shape import WIDTHS
from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.int8.isa.dot_product import ISSUED
from forge_pipeline.codegen.int8.isa.table import dot_product
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import LOAD_COST, LOAD_PORTS, WEIGHT_COST, Machine, divisors

STEPS = 16
"""Steps of a convolution that take as long as storing one result, as ``moves.MULTIPLY_ADDS`` does for floats."""

COPY_CYCLES = 1.5
"""Cycles for a vector of an image that is copied to have a wider margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenTile:
    """A tile of ``pixels`` by ``vectors`` of filters, and the cycles of all of them.

    ``shares``: a step takes a whole row of the kernel, in whose pixels those of the tile overlap.
    """

    cycles: float
    pixels: int
    vectors: int
    shares: bool = False


def choose_even_tile(
    machine: Machine, geometry: Geometry, rows: int, steps: int, blocks: int,
    *, may_share: bool = True, in_place: bool = False,
) -> EvenTile:  # fmt: skip
    """Return the cheapest tile; the last of a row computes pixels that nobody stores.

    Where the width is symbolic, cycles are those for a pixel, on average over usual widths. ``in_place``: then a row is
    all pixels of the image.
    """
    dot, is_sized = dot_product(machine), geometry.is_static
    widths = (geometry.output[1],) if is_sized else (primitives.UNKNOWN**2,) if in_place else WIDTHS
    best: EvenTile | None = None
    for vectors in divisors(rows, 4):
        for pixels in range(1, min(max(widths), machine.registers) + 1):
            if not dot.fits(machine, pixels, vectors):
                break
            options = [(dot.step_cycles(machine, pixels, vectors), False)]
            if may_share and is_sized and vectors == 1 and _may_share(machine, geometry, pixels):
                options.append((_shared_step_cycles(machine, geometry, pixels), True))
            step, shares = min(options)
            tile = (step * steps + 5) * (rows // vectors)
            if is_sized:
                cycles = -(-widths[0] // pixels) * tile
                if widths[0] % pixels and not any(geometry.padding):
                    cycles += geometry.size[1] * blocks * COPY_CYCLES
            else:
                cycles = sum(-(-width // pixels) * tile / width for width in widths)
            if best is None or cycles <= best.cycles:
                best = EvenTile(cycles=cycles, pixels=pixels, vectors=vectors, shares=shares)
    assert best is not None  # noqa: S101 - one by one always fits
    return best


def _may_share(machine: Machine, geometry: Geometry, pixels: int) -> bool:
    """Return whether neighbours read the same pixels, and a row of weights and of those finds room beside the sums.

    Only where a step takes one instruction is it worth anything: elsewhere arithmetic is what bounds it.
    """
    width = geometry.kernel[1]
    overlaps = width > geometry.strides[1] and geometry.dilation[1] == 1
    return dot_product(machine).is_single and overlaps and pixels + 2 * width <= machine.registers


def _shared_step_cycles(machine: Machine, geometry: Geometry, pixels: int) -> float:
    """Return the cycles of a step, one of as many as a row of the kernel has, for a tile of one vector."""
    width = geometry.kernel[1]
    loads = ((pixels - 1) * geometry.strides[1] + 2 * width) / width
    bound = max(pixels / machine.fma_ports, (pixels + loads) / ISSUED, loads / LOAD_PORTS, dot_product(machine).latency)
    return bound + LOAD_COST * loads + WEIGHT_COST
