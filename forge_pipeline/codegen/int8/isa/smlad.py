"""Armv7E-M's DSP instructions, on words of 32 bits: two products of int16 at once, of bytes widened on the way.

One instruction widens every second byte of a word, of activations and weights alike: nothing is stored in int16, and no
order changes. A vector of sums is four registers of the core, of which three find room; floats have their own.
"""

from __future__ import annotations

import numpy as np

from forge_pipeline.codegen.int8.isa.dot_product import DotProduct, Operands
from forge_pipeline.codegen.int8.isa.instruction import Instruction, add_products, reinterpret, shuffle
from forge_pipeline.codegen.int8.isa.instruction_set import InstructionSet
from forge_pipeline.codegen.layout.builder import Array

RIGHT = 8
"""The rotation that brings the other two bytes of a word to where the instructions look: part of the instruction."""


def _widen_unsigned(word: Array) -> Array:
    """Return the first and third byte of a word as two int16 in one (Arm's manual, UXTB16)."""
    return word.view(np.uint8)[::2].astype(np.int16).view(np.int32)


def _widen_signed(word: Array) -> Array:
    """Return the first and third byte of a word, signed, as two int16 in one (Arm's manual, SXTB16)."""
    return word.view(np.int8)[::2].astype(np.int16).view(np.int32)


def _multiply_add(left: Array, right: Array, sums: Array) -> Array:
    """Return a sum and two products of int16, modulo 2^32 (Arm's manual, SMLAD)."""
    return add_products(sums, left.view(np.int16), right.view(np.int16))


def _rotate(high: Array, low: Array, bits: Array) -> Array:
    """Return 32 bits of two words side by side."""
    wide = high.view(np.uint32).astype(np.uint64) << np.uint64(32) | low.view(np.uint32).astype(np.uint64)
    return (wide >> bits.astype(np.uint64)).astype(np.uint32).view(np.int32)


UXTB16 = Instruction(name="uxtb16", llvm="llvm.arm.uxtb16", meaning=_widen_unsigned)
SXTB16 = Instruction(name="sxtb16", llvm="llvm.arm.sxtb16", meaning=_widen_signed)
SMLAD = Instruction(name="smlad", llvm="llvm.arm.smlad", meaning=_multiply_add)
ROR = Instruction(name="ror", llvm="llvm.fshr.i32", meaning=_rotate)


def _smlad(of: Operands) -> str:
    sums = []
    weights = reinterpret(of.weights_as("int8"), of.int32)
    for lane in range(of.lanes):
        total, *words = (shuffle(vector, [lane]) for vector in (of.sums, of.activations, weights))
        for rotated in (words, [ROR.script("int32", word, word, f"T.int32({RIGHT})") for word in words]):
            activations, weight = UXTB16.script("int32", rotated[0]), SXTB16.script("int32", rotated[1])
            total = SMLAD.script("int32", activations, weight, total)
        sums.append(total)
    return shuffle(", ".join(sums), range(of.lanes))


INSTRUCTION_SET = InstructionSet(
    dot=DotProduct(
        name="smlad", instructions=(UXTB16, SXTB16, SMLAD, ROR), emit=_smlad, k_inner=4, multiplies=8, others=8,
        latency=8, scratch=5,
    ),
)  # fmt: skip
