"""Any NEON: products of int8 in int16, two of which are added up there, before int32 (Arm's manual, SMULL, SADALP)."""

from __future__ import annotations

import numpy as np

from forge_pipeline.codegen.int8.isa.dot_product import SIGN_BIT, DotProduct, Operands
from forge_pipeline.codegen.int8.isa.instruction import Instruction, fence, reinterpret, shuffle
from forge_pipeline.codegen.int8.isa.instruction_set import InstructionSet
from forge_pipeline.codegen.int8.isa.micro_kernel import LANES, PIXELS, MicroKernel, Reader
from forge_pipeline.codegen.layout.builder import Array


def _multiply(left: Array, right: Array) -> Array:
    """Return the products of int8 as int16."""
    products: Array = left.astype(np.int16) * right.astype(np.int16)
    return products


def _add_neighbours(products: Array) -> Array:
    """Return sums of two neighbouring int16 as int32."""
    sums: Array = products.astype(np.int32).reshape(-1, 2).sum(axis=1, dtype=np.int32)
    return sums


SMULL = Instruction(name="smull", llvm="llvm.aarch64.neon.smull", meaning=_multiply)
SADDLP = Instruction(name="saddlp", llvm="llvm.aarch64.neon.saddlp", meaning=_add_neighbours)

_HALVES = ((0, 1, 4, 5, 8, 9, 12, 13), (2, 3, 6, 7, 10, 11, 14, 15))
"""The first two of four channels of each lane, and the others."""


def _smull(of: Operands) -> str:
    return _added(of, of.signed())


def _smull_signed(of: Operands) -> str:
    return _added(of, of.activations_as("int8"))


def _added(of: Operands, activations: str) -> str:
    """Two products of int8 fit int16 (at most 128 * 127 each), but not where both factors may be -128."""
    products = [
        SMULL.script("int16x8", shuffle(activations, half), shuffle(of.weights_as("int8"), half)) for half in _HALVES
    ]
    pairs = products if of.full else [" + ".join(products)]
    return fence(" + ".join([of.sums, *(SADDLP.script("int32x4", pair) for pair in pairs)]), of.lanes)


def _smull_by_element(reader: Reader) -> list[str]:
    pixels = reinterpret(reader.pixels(0, PIXELS, LANES, signed=True), "int16x8")
    statements = []
    for pixel in range(PIXELS):
        sums, halves = f"C[{pixel}, T.ramp(0, 1, 4)]", []
        for half in range(2):
            one = reinterpret(shuffle(pixels, [2 * pixel + half] * 4), "int8x8")
            halves.append(SMULL.script("int16x8", one, f"B.vload([{half}, 0, 0], 'int8x8')"))
        added = f"{fence(sums, LANES)} + {SADDLP.script('int32x4', ' + '.join(halves))}"
        statements.append(f"{sums} = {fence(added, LANES)}")
    return statements


SIGNED = DotProduct(
    name="smull_signed", instructions=(SMULL, SADDLP), emit=_smull_signed, k_inner=4, activation="int8", multiplies=3,
    latency=4, scratch=5, adds_int16=True,
)  # fmt: skip
INSTRUCTION_SET = InstructionSet(
    dot=DotProduct(
        name="smull", instructions=(SMULL, SADDLP), emit=_smull, k_inner=4, activation_offset=SIGN_BIT, multiplies=3,
        latency=4, scratch=5, by_element=True, reading=5, adds_int16=True,
    ),
    micro_kernels=(
        MicroKernel(
            name="smull", instructions=(SMULL, SADDLP), emit=_smull_by_element, multiplies=12, moves=8, scratch=11,
            signed=True, axes={"p": 4, "i": 4, "h": 2, "k": 2}, step="hk", weights="hik",
        ),
    ),
    nibbles=SIGNED,
    signed=SIGNED,
)  # fmt: skip
