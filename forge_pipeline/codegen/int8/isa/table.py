"""Every instruction set, by the ``dot_product`` of a target. docs/integer_code.md says what a new one takes."""

from __future__ import annotations

from collections.abc import Mapping

from forge_pipeline.codegen.int8.isa import avx_vnni, i8mm, pmaddwd, sdot, smlad, smull, vnni
from forge_pipeline.codegen.int8.isa.dot_product import DotProduct
from forge_pipeline.codegen.int8.isa.instruction_set import InstructionSet
from forge_pipeline.codegen.tir.machine import Machine

INSTRUCTION_SETS: Mapping[str, InstructionSet] = {
    "vnni": vnni.INSTRUCTION_SET,
    "avx_vnni": avx_vnni.INSTRUCTION_SET,
    "pmaddwd": pmaddwd.INSTRUCTION_SET,
    "sdot": sdot.INSTRUCTION_SET,
    "smlad": smlad.INSTRUCTION_SET,
    "smull": smull.INSTRUCTION_SET,
    "i8mm": i8mm.INSTRUCTION_SET,
}


def has_dot_product(machine: Machine) -> bool:
    """Return whether the machine multiplies int8; where it does not, floats serve as well."""
    return machine.dot_product in INSTRUCTION_SETS


def instruction_set(machine: Machine) -> InstructionSet:
    """Return what the machine multiplies int8 with, for code that is only reached where it does."""
    return INSTRUCTION_SETS[machine.dot_product]


def dot_product(machine: Machine) -> DotProduct:
    """Return the dot product that serves every kernel, for code that is only reached where there is one."""
    return instruction_set(machine).dot
