"""Dot products of bytes: the instruction that a CPU has for them, as something a schedule can tensorize with.

Activations are uint8 with any zero point, weights int8 (or shifted to it) without one, sums int32. Each lane adds
up four neighbouring channels in one step. Where there is no such instruction, products are made of 16-bit halves
that cannot saturate: slower, and as exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge_pipeline.codegen.machine import Machine

if TYPE_CHECKING:
    from tvm import te
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import LoopRV

GROUP = 4
"""Neighbouring bytes that one lane multiplies and adds in a step."""

BYTES, WORD, TRANSPOSED = "bytes", "word", "transposed"
"""How a step reads its activations: four bytes for all lanes, these four in one int32, or four bytes for each lane."""

_PATTERNS = {
    BYTES: ("A = T.match_buffer(a, (4,), 'uint8', offset_factor=1)", "A[0:4]", "T.Cast('int32', A[vk])"),
    WORD: (
        "A = T.match_buffer(a, (1,), 'int32', offset_factor=1)",
        "A[0:1]",
        "((A[0] >> T.Cast('int32', vk * T.int64(8))) & 255)",
    ),
    TRANSPOSED: (
        "A = T.match_buffer(a, (4, {lanes}), 'uint8', offset_factor=1, strides=[{lanes}, 1])",
        "A[0:4, 0:{lanes}]",
        "T.Cast('int32', A[vk, vi])",
    ),
}

_FRAME = """
@T.prim_func(s_tir=True)
def dot(a: T.handle, b: T.handle, c: T.handle) -> None:
    {activations}
    B = T.match_buffer(b, ({lanes}, 4), 'int8', offset_factor=1)
    C = T.match_buffer(c, ({lanes},), 'int32', offset_factor=1, scope='local')
    with T.sblock('root'):
        T.reads(C[0:{lanes}], {read}, B[0:{lanes}, 0:4])
        T.writes(C[0:{lanes}])
"""

_MEANING = """
        for i in range({lanes}):
            for k in range(T.int64(4)):
                with T.sblock('update'):
                    vi, vk = T.axis.remap('SR', [i, k])
                    C[vi] = C[vi] + {value} * T.Cast('int32', B[vi, vk])
"""

_ACTIVATIONS = {
    BYTES: "T.broadcast(T.reinterpret(A.vload([0], 'uint8x4'), dtype='int32'), {lanes})",
    WORD: "T.broadcast(A[0], {lanes})",
    TRANSPOSED: "T.reinterpret(T.Shuffle([A.vload([0, 0], 'uint8x{bytes}')], [{order}]), dtype='int32x{lanes}')",
}

_VPDPBUSD = """
        C[T.ramp(0, 1, {lanes})] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id('llvm.x86.avx512.vpdpbusd.{bits}'),
            C[T.ramp(0, 1, {lanes})],
            T.reinterpret({activations}, dtype='uint8x{bytes}'),
            B.vload([0, 0], 'int8x{bytes}'),
            dtype='int32x{lanes}')
"""

_SDOT = """
        C[T.ramp(0, 1, 4)] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id('llvm.aarch64.neon.sdot'),
            C[T.ramp(0, 1, 4)],
            B.vload([0, 0], 'int8x16'),
            T.reinterpret({activations} ^ T.broadcast(T.int32(-2139062144), 4), dtype='int8x16'),
            dtype='int32x4')
"""


def has_dot_product(machine: Machine) -> bool:
    """Return whether the machine multiplies and adds bytes in one instruction."""
    return machine.dot_product != "none"


def bias_of_signed(machine: Machine) -> int:
    """Return what the machine's instruction takes from every activation first: sdot wants them signed."""
    return 128 if machine.dot_product in ("sdot", "i8mm") else 0


def products(value: te.PrimExpr, weight: te.PrimExpr) -> Any:
    """Describe one multiplication of a template; ``dot`` recognises it."""
    return value.astype("int32") * weight.astype("int32")


def dot(sch: Schedule, loop: LoopRV, machine: Machine, reads: str) -> None:
    """Compute what is inside ``loop`` (lanes by four channels) with the machine's instruction."""
    sch.tensorize(loop, _intrinsic(machine, reads))


def _intrinsic(machine: Machine, reads: str) -> str:
    """Return the name of the tensor intrinsic, registered when it is first asked for."""
    from tvm import script
    from tvm.s_tir import TensorIntrin

    name = f"forge.{machine.dot_product}.{machine.lanes}.{reads}"
    if TensorIntrin.get(name, allow_missing=True) is not None:
        return name
    lanes = machine.lanes
    order = ", ".join(str(row * lanes + lane) for lane in range(lanes) for row in range(GROUP))
    words: dict[str, Any] = {"lanes": lanes, "bytes": 4 * lanes, "bits": 32 * lanes, "order": order}
    declaration, read, value = (part.format(**words) for part in _PATTERNS[reads])
    words |= {"activations": declaration, "read": read, "value": value}
    meaning = (_FRAME + _MEANING).format(**words)
    words |= {"activations": declaration}
    frame = _FRAME.format(**words)
    words |= {"activations": _ACTIVATIONS[reads].format(**words)}
    body = (_SDOT if machine.dot_product in ("sdot", "i8mm") else _VPDPBUSD).format(**words)
    TensorIntrin.register(name, script.from_source(meaning), script.from_source(frame + body))
    return name
