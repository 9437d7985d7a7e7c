"""Steps of uint8 weights by int8 activations whose products are added up in int16, in pairs, and widened at the end.

Four bits times a byte leave room for that: eight times two products of 15 by -128 are -30720. A step of four channels
then takes one multiplication and one addition.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from forge_pipeline.codegen.int8.isa.dot_product import LATER
from forge_pipeline.codegen.int8.isa.instruction import Instruction, fence, register, reinterpret

K_INNER, PAIRS = 4, 2
"""Channels of a step, and the sums of two that a lane of int32 holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """At most ``steps`` steps in a row: ``multiply`` gives an int16 for each pair of a step, ``widen`` adds up two."""

    steps: int
    multiply: Instruction
    widen: Instruction

    def length(self, groups: int) -> int:
        """Return how many steps go together where a block has ``groups``."""
        return max(steps for steps in range(1, self.steps + 1) if groups % steps == 0)


_STEP = """
@T.prim_func(s_tir=True)
def step(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, (4,), 'int8', offset_factor=1)
    B = T.match_buffer(b, ({lanes}, 4), 'uint8', offset_factor=1, scope='local')
    C = T.match_buffer(c, ({lanes}, 2), 'int16', offset_factor=1, scope='local')
    with T.sblock('root'):
        T.reads(C[0:{lanes}, 0:2], A[0:4], B[0:{lanes}, 0:4])
        T.writes(C[0:{lanes}, 0:2])
        {body}
"""
_STEP_PATTERN = """for i, p, k in T.grid({lanes}, 2, 2):
            with T.sblock('update'):
                vi, vp, vk = T.axis.remap('SSR', [i, p, k])
                C[vi, vp] = C[vi, vp] + T.Cast('int16', A[vp * 2 + vk]) * T.Cast('int16', B[vi, vp * 2 + vk])"""

_WIDEN = """
@T.prim_func(s_tir=True)
def widen(b: T.handle, c: T.handle) -> None:
    B = T.match_buffer(b, ({lanes}, 2), 'int16', offset_factor=1, scope='local')
    C = T.match_buffer(c, ({lanes},), 'int32', offset_factor=1, scope='local')
    with T.sblock('root'):
        T.reads(C[0:{lanes}], B[0:{lanes}, 0:2])
        T.writes(C[0:{lanes}])
        {body}
"""
_WIDEN_PATTERN = """for i, p in T.grid({lanes}, 2):
            with T.sblock('update'):
                vi, vp = T.axis.remap('SR', [i, p])
                C[vi] = C[vi] + T.Cast('int32', B[vi, vp])"""


def tensorize(sch: Schedule, loop: LoopRV, name: str, *, later: bool) -> None:
    """Compute what is inside ``loop`` with one of ``intrinsics``.

    ``later``: by ``tensorize_rest``, when nothing is left inside that is computed under a condition.
    """
    if later:
        sch.annotate(loop, LATER, name)
    else:
        sch.tensorize(loop, name)


def intrinsics(chain: Chain, lanes: int) -> tuple[str, str]:
    """Return the names of the tensor intrinsics of a step, and of widening, registered when they are first asked for.

    A fence keeps LLVM from adding up the products of a step's neighbours first.
    """
    bits, size, params = 32 * lanes, K_INNER * lanes, {"lanes": lanes}
    pairs, sums = f"int16x{PAIRS * lanes}", f"int32x{lanes}"
    names = (f"forge.chain.{chain.multiply.name}.{lanes}", f"forge.chain.{chain.widen.name}.{lanes}")
    packed = reinterpret("A.vload([0], 'int8x4')", "int32")
    activations = reinterpret(f"T.broadcast({packed}, {lanes})", f"int8x{size}")
    product = chain.multiply.script(pairs, f"B.vload([0, 0], 'uint8x{size}')", activations, bits=bits)
    total = fence(f"C.vload([0, 0], '{pairs}') + {product}", lanes, "int16", PAIRS)
    register(names[0], _STEP, _STEP_PATTERN.format(**params), f"C.vstore([0, 0], {total})", params)
    ones = f"T.broadcast(T.int16(1), {PAIRS * lanes})"
    wide = chain.widen.script(sums, f"B.vload([0, 0], '{pairs}')", ones, bits=bits)
    body = f"C.vstore([0], C.vload([0], '{sums}') + {wide})"
    register(names[1], _WIDEN, _WIDEN_PATTERN.format(**params), body, params)
    return names
