"""AVX-512 VNNI: one instruction multiplies four uint8 by four int8 and adds all to an int32 (Intel's manual)."""

from __future__ import annotations

from forge_pipeline.codegen.int8.isa.dot_product import DotProduct, Operands
from forge_pipeline.codegen.int8.isa.instruction import Instruction, add_products
from forge_pipeline.codegen.int8.isa.instruction_set import InstructionSet

VPDPBUSD = Instruction(
    name="vpdpbusd", llvm={bits: f"llvm.x86.avx512.vpdpbusd.{bits}" for bits in (128, 256, 512)}, meaning=add_products
)
VPDPWSSD = Instruction(
    name="vpdpwssd", llvm={bits: f"llvm.x86.avx512.vpdpwssd.{bits}" for bits in (128, 256, 512)}, meaning=add_products
)


def _vpdpbusd(of: Operands) -> str:
    return VPDPBUSD.script(of.int32, of.sums, of.activations_as("uint8"), of.weights_as("int8"), bits=of.bits)


def _vpdpwssd(of: Operands) -> str:
    return VPDPWSSD.script(of.int32, of.sums, of.activations_as("int16"), of.weights_as("int16"), bits=of.bits)


def _vpdpbusd_signed(of: Operands) -> str:
    return VPDPBUSD.script(of.int32, of.sums, of.weights_as("uint8"), of.activations_as("int8"), bits=of.bits)


SIGNED = DotProduct(
    name="vnni_signed", instructions=(VPDPBUSD,), emit=_vpdpbusd_signed, k_inner=4, activation="int8", weights="uint8",
    latency=5, is_single=True,
)  # fmt: skip
INSTRUCTION_SET = InstructionSet(
    dot=DotProduct(
        name="vnni", instructions=(VPDPBUSD,), emit=_vpdpbusd, k_inner=4, latency=5, is_single=True,
    ),
    int16=DotProduct(
        name="vpdpwssd", instructions=(VPDPWSSD,), emit=_vpdpwssd, k_inner=2, activation="int16", latency=5,
    ),
    packs=True,
    nibbles=SIGNED,
    signed=SIGNED,
)  # fmt: skip
