"""What a CPU has for products of int8."""

from __future__ import annotations

from dataclasses import dataclass

from forge_pipeline.codegen.int8.isa.chain import Chain
from forge_pipeline.codegen.int8.isa.dot_product import DotProduct
from forge_pipeline.codegen.int8.isa.micro_kernel import MicroKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionSet:
    """What the ``dot_product`` of a target names.

    ``dot`` serves every kernel. ``int16`` multiplies int16 by int16, for Winograd's transformed tiles. NEON's kernels
    choose from ``micro_kernels``. ``saturating_pairs``: there is `pmaddubsw`, which serves where signs are flipped.
    ``packs``: results of several pixels are narrowed together, as on an x86. ``nibbles`` and ``signed`` multiply
    activations with a sign, of which blocks share a scale, by weights of four bits, 0 to 15, and of eight;
    ``chain`` adds up some steps of ``nibbles`` in int16.
    """

    dot: DotProduct
    int16: DotProduct | None = None
    micro_kernels: tuple[MicroKernel, ...] = ()
    saturating_pairs: bool = False
    packs: bool = False
    nibbles: DotProduct | None = None
    signed: DotProduct | None = None
    chain: Chain | None = None
