"""ARMv8.2 dot products: four int8 by four int8; activations are moved to int8 first (Arm's manual, SDOT)."""

from __future__ import annotations

from forge_pipeline.codegen.int8.isa.dot_product import SIGN_BIT, DotProduct, Operands
from forge_pipeline.codegen.int8.isa.instruction import Instruction, add_products
from forge_pipeline.codegen.int8.isa.instruction_set import InstructionSet
from forge_pipeline.codegen.int8.isa.micro_kernel import MicroKernel, Reader, by_element

SDOT = Instruction(name="sdot", llvm="llvm.aarch64.neon.sdot", meaning=add_products)


def _sdot(of: Operands) -> str:
    return SDOT.script(of.int32, of.sums, of.weights_as("int8"), of.signed())


def _sdot_signed(of: Operands) -> str:
    return SDOT.script(of.int32, of.sums, of.weights_as("int8"), of.activations_as("int8"))


def _sdot_by_element(reader: Reader) -> list[str]:
    return by_element(SDOT, reader, signed=True)


MICRO_KERNEL = MicroKernel(
    name="sdot", instructions=(SDOT,), emit=_sdot_by_element, multiplies=4, signed=True,
    axes={"p": 4, "i": 4, "k": 4}, weights="ik",
)  # fmt: skip
SIGNED = DotProduct(
    name="sdot_signed", instructions=(SDOT,), emit=_sdot_signed, k_inner=4, activation="int8", latency=4,
)  # fmt: skip
INSTRUCTION_SET = InstructionSet(
    dot=DotProduct(
        name="sdot", instructions=(SDOT,), emit=_sdot, k_inner=4, activation_offset=SIGN_BIT, latency=4,
        by_element=True, reading=2,
    ),
    micro_kernels=(MICRO_KERNEL,),
    nibbles=SIGNED,
    signed=SIGNED,
)  # fmt: skip
