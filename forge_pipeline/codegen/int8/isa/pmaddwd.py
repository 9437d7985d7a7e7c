"""Any x86: bytes are widened to int16, products of two neighbours added up in int32; `pmaddubsw` serves what it can."""

from __future__ import annotations

import numpy as np

from forge_pipeline.codegen.int8.isa.chain import Chain
from forge_pipeline.codegen.int8.isa.dot_product import DotProduct, Operands
from forge_pipeline.codegen.int8.isa.instruction import Instruction, add_modulo, add_products
from forge_pipeline.codegen.int8.isa.instruction_set import InstructionSet
from forge_pipeline.codegen.layout.builder import Array


def _add_neighbours(left: Array, right: Array) -> Array:
    """Return sums of two int16 products each, modulo 2^32 (Intel's manual, PMADDWD)."""
    return add_products(np.zeros(left.size // 2, np.int32), left, right)


PMADDWD = Instruction(
    name="pmaddwd",
    llvm={128: "llvm.x86.sse2.pmadd.wd", 256: "llvm.x86.avx2.pmadd.wd", 512: "llvm.x86.avx512.pmaddw.d.512"},
    meaning=_add_neighbours,
)


def _add_pairs(activations: Array, weights: Array) -> Array:
    """Return sums of two products of uint8 by int8 as int16, saturated (Intel's manual, PMADDUBSW)."""
    sums: Array = (activations.astype(np.int32) * weights.astype(np.int32)).reshape(-1, 2).sum(axis=1)
    return np.clip(sums, -(1 << 15), (1 << 15) - 1).astype(np.int16)


PMADDUBSW = Instruction(
    name="pmaddubsw",
    llvm={
        128: "llvm.x86.ssse3.pmadd.ub.sw.128",
        256: "llvm.x86.avx2.pmadd.ub.sw",
        512: "llvm.x86.avx512.pmaddubs.w.512",
    },
    meaning=_add_pairs,
)


def _pmaddubsw(of: Operands) -> str:
    """Two products of 15 by 128 fit int16."""
    activations, ones = of.activations_as("int8"), f"T.broadcast(T.int16(1), {2 * of.lanes})"
    pairs = PMADDUBSW.script(f"int16x{2 * of.lanes}", of.weights_as("uint8"), activations, bits=of.bits)
    return add_modulo(of.sums, PMADDWD.script(of.int32, pairs, ones, bits=of.bits), of.lanes)


def _pmaddwd(of: Operands) -> str:
    product = PMADDWD.script(of.int32, of.activations_as("int16"), of.weights_as("int16"), bits=of.bits)
    return add_modulo(of.sums, product, of.lanes)


DOT = DotProduct(
    name="pmaddwd", instructions=(PMADDWD,), emit=_pmaddwd, k_inner=2, activation="int16", others=1, latency=1,
    scratch=1,
)  # fmt: skip
CHAIN = Chain(steps=8, multiply=PMADDUBSW, widen=PMADDWD)
NIBBLES = DotProduct(
    name="pmaddubsw_nibbles", instructions=(PMADDUBSW, PMADDWD), emit=_pmaddubsw, k_inner=4, activation="int8",
    weights="uint8", multiplies=2, others=1, latency=1, scratch=2,
)  # fmt: skip
INSTRUCTION_SET = InstructionSet(
    dot=DOT, int16=DOT, saturating_pairs=True, packs=True, nibbles=NIBBLES, signed=DOT, chain=CHAIN
)  # fmt: skip
