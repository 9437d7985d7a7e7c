"""ARMv8.6 matrix products: two pixels by two filters, eight uint8 by eight int8 (Arm's manual, USMMLA and USDOT)."""

from __future__ import annotations

import numpy as np

from forge_pipeline.codegen.int8.isa.dot_product import DotProduct, Operands
from forge_pipeline.codegen.int8.isa.instruction import Instruction, add_products
from forge_pipeline.codegen.int8.isa.instruction_set import InstructionSet
from forge_pipeline.codegen.int8.isa.micro_kernel import MicroKernel, Reader, by_element
from forge_pipeline.codegen.layout.builder import Array


def _multiply_matrices(sums: Array, left: Array, right: Array) -> Array:
    """Add the product of two rows of eight by two columns of eight to 2 x 2 sums, modulo 2^32."""
    product = left.astype(np.int32).reshape(2, 8) @ right.astype(np.int32).reshape(2, 8).T
    total: Array = sums + product.reshape(-1)
    return total


USMMLA = Instruction(name="usmmla", llvm="llvm.aarch64.neon.usmmla", meaning=_multiply_matrices)
USDOT = Instruction(name="usdot", llvm="llvm.aarch64.neon.usdot", meaning=add_products)


def _usmmla(reader: Reader) -> list[str]:
    statements = []
    for pair in range(2):
        pixels = reader.pixels(2 * pair, 2, 8, signed=False)
        for filters in range(2):
            sums, weights = f"C[{pair}, {filters}, 0, T.ramp(0, 1, 4)]", f"B.vload([{filters}, 0, 0, 0], 'int8x16')"
            statements.append(f"{sums} = {USMMLA.script('int32x4', sums, pixels, weights)}")
    return statements


def _usdot(of: Operands) -> str:
    return USDOT.script(of.int32, of.sums, of.activations_as("uint8"), of.weights_as("int8"))


def _usdot_signed(of: Operands) -> str:
    return USDOT.script(of.int32, of.sums, of.weights_as("uint8"), of.activations_as("int8"))


def _usdot_by_element(reader: Reader) -> list[str]:
    return by_element(USDOT, reader, signed=False)


SIGNED = DotProduct(
    name="i8mm_signed", instructions=(USDOT,), emit=_usdot_signed, k_inner=4, activation="int8", weights="uint8",
    latency=4,
)  # fmt: skip
INSTRUCTION_SET = InstructionSet(
    dot=DotProduct(
        name="i8mm", instructions=(USDOT,), emit=_usdot, k_inner=4, latency=4, by_element=True, reading=1,
    ),
    micro_kernels=(
        MicroKernel(
            name="usmmla", instructions=(USMMLA,), emit=_usmmla, multiplies=4, loads=2, weight_vectors=2, signed=False,
            axes={"q": 2, "j": 2, "p": 2, "i": 2, "h": 2, "k": 4}, pixel="qp", lane="ji", step="hk", sums="qjpi",
            weights="jihk",
        ),
        MicroKernel(
            name="usdot", instructions=(USDOT,), emit=_usdot_by_element, multiplies=4, signed=False,
            axes={"p": 4, "i": 4, "k": 4}, weights="ik",
        ),
    ),
    nibbles=SIGNED,
    signed=SIGNED,
)  # fmt: skip
