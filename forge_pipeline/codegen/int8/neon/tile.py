"""The choice of tiles for products of bytes on NEON, by counting cycles (as in ``machine``)."""

from __future__ import annotations

from dataclasses import dataclass

from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.int8.isa.micro_kernel import LANES, PIXELS, MicroKernel, cycles
from forge_pipeline.codegen.int8.isa.table import dot_product, instruction_set
from forge_pipeline.codegen.tir.machine import Machine, divisors

ROW_CYCLES, HALVES_CYCLES, PACK_CYCLES = 0.3, 0.3, 1.0
"""Cycles for four bytes that are copied in rows, with a block's other half beside them, out of a matrix."""
TILE_CYCLES = 5
"""Cycles until the last sums of a tile are there."""
WIDEST = 4
"""Vectors of filters in a tile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A tile of ``pixels`` by ``vectors`` of filters, computed by a micro-kernel.

    ``cycles`` are expected for an image on a core. ``copies``: activations are copied into rows first, with a margin,
    signed if the micro-kernel wants them so.
    """

    kernel: MicroKernel
    pixels: int
    vectors: int
    copies: bool
    cycles: float


def choose_plan(machine: Machine, geometry: Geometry, *, is_matrix: bool = False) -> Plan | None:
    """Return the plan with the fewest cycles; None where dot products of single pixels have as few."""
    options = [
        plan
        for kernel in instruction_set(machine).micro_kernels
        for plan in _plans(machine, geometry, kernel, is_matrix=is_matrix)
    ]
    best = min(options, key=lambda plan: (plan.cycles, -plan.pixels * plan.vectors), default=None)
    return best if best is not None and best.cycles < _single_cycles(machine, geometry) else None


def _plans(machine: Machine, geometry: Geometry, kernel: MicroKernel, *, is_matrix: bool) -> list[Plan]:
    out_h, out_w = geometry.output
    channels = geometry.channels // geometry.groups
    if geometry.groups > 1 and channels % kernel.k_inner:
        return []
    rows = -(-geometry.filters // LANES)
    blocks = -(-channels // kernel.k_inner)
    steps = blocks * geometry.kernel[0] * geometry.kernel[1]
    packed = geometry.size[0] * geometry.size[1] * -(-geometry.channels // LANES)
    found = []
    for vectors in divisors(rows // geometry.groups, WIDEST):
        for pixels in range(PIXELS, min(out_w, machine.registers) + PIXELS, PIXELS):
            tiles = -(-out_w // pixels)
            needed = not is_matrix and needs_row(geometry, kernel, tiles * pixels)
            for copies in (True,) if needed else (False, True) if kernel.signed and not is_matrix else (False,):
                raw = not copies and not is_matrix
                if kernel.registers(pixels, vectors, raw=raw) > machine.registers:
                    continue
                step = kernel.step_cycles(machine, pixels, vectors, stride=geometry.strides[1], raw=raw)
                total = out_h * tiles * (rows // vectors) * (step * steps + TILE_CYCLES)
                total += packed * (ROW_CYCLES if copies else 0)
                total += packed * (PACK_CYCLES if is_matrix else HALVES_CYCLES if kernel.reads_halves else 0)
                found.append(Plan(kernel=kernel, pixels=pixels, vectors=vectors, copies=copies, cycles=total))
    return found


def needs_row(geometry: Geometry, kernel: MicroKernel, out_w: int) -> bool:
    """Return whether an image has to be copied before micro-kernels can read ``out_w`` pixels of a row."""
    if any(geometry.padding) or geometry.input_width(out_w) > geometry.size[1]:
        return True
    if not kernel.reads_halves:
        return False
    return geometry.size[1] % PIXELS != 0 or -(-geometry.channels // LANES) % 2 != 0


def _single_cycles(machine: Machine, geometry: Geometry) -> float:
    """Return the cycles where each pixel is read for itself."""
    dot = dot_product(machine)
    out_h, out_w = geometry.output
    rows = -(-geometry.filters // LANES)
    steps = -(-(geometry.channels // geometry.groups) // LANES) * geometry.kernel[0] * geometry.kernel[1]

    def step(pixels: int, vectors: int) -> float:
        return cycles(machine, pixels * (vectors * dot.multiplies + dot.reading), pixels + vectors, vectors)

    return out_h * min(
        -(-out_w // pixels) * (rows // vectors) * (step(pixels, vectors) * steps + TILE_CYCLES)
        for vectors in divisors(rows // geometry.groups, WIDEST)
        for pixels in range(1, min(out_w, machine.registers) + 1)
        if pixels * vectors + vectors + 2 <= machine.registers
    )
