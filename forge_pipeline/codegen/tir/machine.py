"""The CPU as the code generator sees it, and the choice of register tiles by counting cycles.

Nothing is timed, so the same target always gives the same code. The model is the one of Goto and van de Geijn
("Anatomy of High-Performance Matrix Multiplication", 2008) for the innermost kernel: a tile of accumulators stays
in registers while one step along the reduction loads ``vectors`` vectors of weights, broadcasts ``pixels``
activations, and starts ``pixels * vectors`` fused multiply-adds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

from forge_pipeline.target import Target

HALF = "float16"

LOAD_PORTS = 2
LOADS = 1.5
"""Loads per cycle beside multiply-adds: what banks in conflict and full queues leave of two ports (measured)."""

PAIRED = 2
"""Products that a lane of a dot product of bfloat16 adds up."""

LATENCY = 5
"""Cycles until a sum can be added to again: four for the instruction, and one lost to everything else."""

LOAD_COST = 0.02
"""Cycles of a load that hides behind arithmetic: of two tiles as fast, the one that loads less is the better."""
WEIGHT_COST = 0.15
"""Cycles of a vector of weights besides: it most often comes from the second cache."""

WAYS = 16
"""Places of a line in the second cache of Sapphire Rapids; others have 8 to 16."""

LINE, PAGE = 64, 4096
"""Bytes of a line, and of a page: on x86 the lines of a page have sets of their own, so that a way is as large."""

ARM_WAYS = 4
"""Places of a line in the first cache of most of ARM's cores; where there are two (A72), a way is twice as large."""

CONFLICT_COST = 2
"""Cycles that a step loses for each row which finds no place in the first cache beside the others (Zen 4)."""

STREAMED_BYTES = 4
"""Bytes per cycle that a core reads from behind its second cache, in order, while it computes."""

STORE_CYCLES = 0.5
"""Cycles for each vector of results: reading what is added to it, activation and store."""

TAIL_PENALTY = 0.02
"""What a second copy of the inner loop costs beside its own cycles: code, a branch, shorter runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A CPU core: ``lanes`` numbers in each of ``registers``, caches in bytes, ``cores`` of them.

    They are float32, or halves where ``halves``: what stays in float32 then has two registers for a vector (`of`).
    ``fused``: multiply and add are one instruction. ``arch`` is the first word of the target's triple, ``dot_product``
    what it has for int8; ``amx``: products of int8 may use tile registers. ``pairs``: products by constant weights are
    of bfloat16, two at a time, in ``pair_ports`` instructions a cycle.
    """

    lanes: int
    registers: int
    fma_ports: float
    fused: bool
    l1: int
    l2: int
    l3: int
    cores: int
    arch: str
    dot_product: str = "none"
    amx: bool = False
    halves: bool = False
    pairs: bool = False
    pair_ports: int = 0

    @classmethod
    def of(cls, target: Target, *, halves: bool = False) -> Machine:
        """Read it from a target's description; ``halves``: as what is computed in half precision sees it."""
        is_x86 = target.arch == "x86_64"
        return cls(
            lanes=target.lanes * (2 if halves else 1),
            registers=target.vector_registers,
            fma_ports=target.fma_ports,
            fused=not is_x86 or target.vector_bits > 128,
            l1=target.l1d_kib << 10,
            l2=(target.l2_kib or target.l1d_kib) << 10,  # what is next to memory
            l3=target.l3_kib_per_core << 10,
            cores=target.cores,
            arch=target.arch,
            dot_product=target.dot_product,
            halves=halves,
            pair_ports=target.bfloat16_ports,
        )

    def computing(self, dtype: str) -> Machine:
        """Return the core as kernels see it that compute in ``dtype``: of two registers one, where these are wider."""
        if not self.halves or dtype == HALF:
            return self
        return replace(self, registers=self.registers // 2, fma_ports=self.fma_ports / 2, halves=False)

    @property
    def item(self) -> int:
        """Bytes of a number."""
        return 2 if self.halves else 4

    @property
    def has_fma_by_element(self) -> bool:
        """Whether float arithmetic takes one element of a vector: activations are loaded by vectors, and stay."""
        return self.arch in ("aarch64", "arm64")

    @property
    def reads_halves(self) -> bool:
        """Whether vectors of halves are widened by an instruction, as on any x86 with 256 bits and 64-bit ARM."""
        return self.has_fma_by_element or (self.arch == "x86_64" and self.fused)

    def multiplies_pairs(self, rows: int | None) -> bool:
        """Return whether so many ``rows`` (None: any number) are multiplied by weights in pairs of bfloat16.

        On Sapphire Rapids one starts in a cycle, where two float32 multiply-adds do: tiles of pairs took 1.6 to 1.8
        times as long (measured); one row, which waits for its weights, 0.6. On Zen 5 (measured) and ARM's Neoverse V1
        (its Software Optimization Guide) it starts as often as a multiply-add.
        """
        return self.pairs and (self.fma_ports < self.pair_ports * PAIRED or rows == 1)

    def fma_cycles(self, vectors: float) -> float:
        """Cycles of that many vectors multiplied and added, at best."""
        return vectors / self.fma_ports * (1 if self.fused else 2)

    def streaming_cycles(self, size: int) -> float:
        """Cycles that reading ``size`` bytes of weights adds: none where they stay in the second cache."""
        return size / STREAMED_BYTES if size > self.l2 // 2 else 0.0

    def room(self, size: int, apart: int) -> int:
        """Return what of the second cache runs of ``size`` bytes can fill that begin ``apart`` bytes from each other.

        A line has few places, those of its address modulo the size of a way. Runs a power of two apart share them.
        """
        return self.l2 * min(size, step := math.gcd(apart, self.l2 // WAYS)) // step

    def conflict_cycles(self, rows: int, apart: int) -> float:
        """Return the cycles that a step loses of which each of ``rows`` reads a number, ``apart`` bytes from the next.

        A line has few places in the first cache, those of its address modulo a way. Rows of 1024 floats share one set:
        sixteen of them, in turn, lose each other's lines, and a tile takes twice its time. 0 where that is not known.
        """
        if not apart:
            return 0.0
        way = self.l1 // ARM_WAYS if self.has_fma_by_element else PAGE
        return CONFLICT_COST * max(0, rows - self.l1 // max(LINE, math.gcd(apart, way)))

    def fits(self, pixels: int, vectors: int) -> bool:
        """Whether sums, weights, activations and (where multiply and add are two) a product find room in registers."""
        activations = pixels if self.has_fma_by_element else 1
        return pixels * vectors + vectors + activations + (0 if self.fused else 1) <= self.registers

    def step_cycles(self, pixels: int, vectors: int) -> float:
        """Cycles of one step along the reduction: bound by arithmetic, by loads, or by the chain of sums."""
        loads = pixels + vectors
        return (
            max(self.fma_cycles(pixels * vectors), loads / LOADS, LATENCY) + LOAD_COST * loads + WEIGHT_COST * vectors
        )

    def tile_cycles(self, pixels: int, vectors: int) -> float:
        """Cycles of a tile besides its steps: until the last sums are there, and what is done with them."""
        return LATENCY + STORE_CYCLES * pixels * vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A block of results computed in registers: ``pixels`` rows of ``vectors`` vectors each.

    ``efficiency`` is the part of the machine's peak that the model expects for the whole extent, tail included.
    """

    pixels: int
    vectors: int
    efficiency: float
    tail: int

    def __str__(self) -> str:
        rest = f", tail {self.tail}" if self.tail else ""
        return f"{self.pixels} x {self.vectors} vectors{rest}: {self.efficiency:.0%} of peak expected"


@cache
def choose_tile(
    machine: Machine, *, pixels: int, vectors: int, steps: int, max_nr: int = 4, even: bool = False, apart: int = 0
) -> Tile:
    """Return the tile with the fewest cycles for ``pixels`` by ``vectors`` results of ``steps`` multiply-adds each.

    ``vectors`` per tile divides ``vectors``; ``pixels`` need not divide: what is left over becomes a smaller tile.
    Equal costs are decided for the larger tile. ``even`` allows no tail; ``apart``: bytes from one pixel to the next.
    """
    best: tuple[float, Tile] | None = None
    ideal = machine.fma_cycles(pixels * vectors * steps)
    for nr in divisors(vectors, max_nr):
        for mr in range(1, min(pixels, machine.registers) + 1):
            if not machine.fits(mr, nr):
                break
            whole, tail = divmod(pixels, mr)
            if even and tail:
                continue
            step = machine.step_cycles(mr, nr) + machine.conflict_cycles(mr, apart)
            cycles = whole * step
            if tail:
                cycles += machine.step_cycles(tail, nr) + TAIL_PENALTY * whole * step
            overhead = LATENCY * (whole + bool(tail)) + STORE_CYCLES * pixels * nr
            total = (cycles * steps + overhead) * (vectors // nr)
            if best is None or total <= best[0]:
                best = (total, Tile(pixels=mr, vectors=nr, efficiency=min(1.0, ideal / total), tail=tail))
    assert best is not None  # noqa: S101 - one by one always fits
    return best[1]


def divisors(number: int, most: int) -> list[int]:
    """Return the divisors of ``number`` up to ``most``, ascending."""
    return [divisor for divisor in range(1, min(number, most) + 1) if number % divisor == 0]
