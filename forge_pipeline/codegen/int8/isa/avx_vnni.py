"""AVX-VNNI: the instructions of AVX-512 VNNI, encoded for CPUs whose vectors have 256 bits at most."""

from __future__ import annotations

from dataclasses import replace

from forge_pipeline.codegen.int8.isa import vnni

INSTRUCTION_SET = replace(vnni.INSTRUCTION_SET, dot=replace(vnni.INSTRUCTION_SET.dot, name="avx_vnni"))
