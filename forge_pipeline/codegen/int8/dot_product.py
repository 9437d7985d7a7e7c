"""Dot products of bytes: the instructions that a CPU has for them, as something a schedule can tensorize with.

Activations are uint8 with any zero point, weights int8 (or shifted to it) without one, sums int32. Each lane adds
up some neighbouring channels in one step. Nothing saturates: where a CPU has no instruction for the purpose, products
are made of 16-bit halves that hold them, or bytes are widened to int16 first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge_pipeline.codegen.tir import primitives, rewriting
from forge_pipeline.codegen.tir.machine import LOAD_COST, LOAD_PORTS, WEIGHT_COST, Machine

if TYPE_CHECKING:
    from tvm import te, tirx
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import LoopRV

WEIGHTS, READS = "forge.weights", "forge.reads"
"""Annotations of a template: the type of its weights, and how its steps read activations (``BYTES`` and others)."""

ISSUED = 5
"""Instructions that a core starts in a cycle, when sums are long."""

LATER = "forge.later"
"""The annotation of a loop that is to be tensorized later: its intrinsic."""

BYTES, WORD, TRANSPOSED = "bytes", "word", "transposed"
"""How a step reads its activations: a group for all lanes, a group in one int32, or a group for each lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A way to multiply and add bytes.

    A step adds up ``group`` neighbouring channels, read as ``activation`` (uint8 or int16). ``taken`` is what it
    takes from every activation first (an instruction may want them signed). It has ``multiplies`` instructions for
    the multiplier and ``others`` beside them, a sum can be added to after ``latency`` cycles, and ``scratch``
    registers are needed besides sums, weights and an activation. ``body`` is its TVM script.
    """

    group: int
    activation: str
    taken: int
    multiplies: int
    others: int
    latency: int
    scratch: int
    body: str

    @property
    def whole(self) -> bool:
        """Whether a step is one instruction of an x86, so that loads and what is around it count."""
        return self.body == _VPDPBUSD

    @property
    def widens(self) -> bool:
        """Whether activations are copied to int16 before they are read."""
        return self.activation == "int16"

    def fits(self, machine: Machine, pixels: int, vectors: int) -> bool:
        """Whether sums, weights and activations find room in registers."""
        activations = pixels if machine.indexed else 1
        return pixels * vectors + vectors + activations + self.scratch <= machine.registers

    def step_cycles(self, machine: Machine, pixels: int, vectors: int) -> float:
        """Cycles of one step along the reduction, for a tile of sums."""
        loads, tile = pixels + vectors, pixels * vectors
        issued = (tile * (self.multiplies + self.others) + loads) / ISSUED
        bound = max(tile * self.multiplies / machine.fma_ports, issued, loads / LOAD_PORTS, self.latency)
        return bound + LOAD_COST * loads + WEIGHT_COST * vectors


_SUM = "C[T.ramp(0, 1, {lanes})]"
_CALL = "T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id('{instruction}'), "

_VPDPBUSD = (
    f"{_SUM} = {_CALL}{_SUM}, T.reinterpret({{activations}}, dtype='uint8x{{bytes}}'), "
    "B.vload([0, 0], 'int8x{bytes}'), dtype='int32x{lanes}')"
)
_VPDPWSSD = (
    f"{_SUM} = {_CALL}{_SUM}, T.reinterpret({{activations}}, dtype='int16x{{elements}}'), "
    "T.Cast('int16x{elements}', B.vload([0, 0], '{weights}x{elements}')), dtype='int32x{lanes}')"
)
_SDOT = (
    f"{_SUM} = {_CALL}{_SUM}, B.vload([0, 0], 'int8x16'), T.reinterpret({{activations}} ^ "
    "T.broadcast(T.int32(-2139062144), 4), dtype='int8x16'), dtype='int32x4')"
)
_USDOT = (
    f"{_SUM} = {_CALL}{_SUM}, T.reinterpret({{activations}}, dtype='uint8x16'), "
    "B.vload([0, 0], 'int8x16'), dtype='int32x4')"
)
_FENCE = "T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id('llvm.arithmetic.fence'), "
_FLOATS = f"T.reinterpret({_SUM}, dtype='float32x{{lanes}}')"
_PMADDWD = (
    f"{_SUM} = T.reinterpret({_FENCE}T.reinterpret("
    f"T.reinterpret({_FENCE}{_FLOATS}, dtype='float32x{{lanes}}'), dtype='uint32x{{lanes}}') + T.reinterpret({_CALL}"
    "T.reinterpret({activations}, dtype='int16x{elements}'), "
    "T.Cast('int16x{elements}', B.vload([0, 0], '{weights}x{elements}')), dtype='int32x{lanes}'), "
    "dtype='uint32x{lanes}'), dtype='float32x{lanes}'), dtype='float32x{lanes}'), dtype='int32x{lanes}')"
)
_SIGNED = "T.reinterpret({activations} ^ T.broadcast(T.int32(-2139062144), 4), dtype='int8x16')"
_HALVES = ("0, 1, 4, 5, 8, 9, 12, 13", "2, 3, 6, 7, 10, 11, 14, 15")
_HALF_PRODUCTS = tuple(
    f"{_CALL}T.Shuffle([{_SIGNED}], [{half}]), T.Shuffle([B.vload([0, 0], 'int8x16')], [{half}]), dtype='int16x8')"
    for half in _HALVES
)


def _added_in_pairs(*products: str) -> str:
    added = "T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id('llvm.aarch64.neon.saddlp'), "
    sums = " + ".join([_SUM, *(f"{added}{product}, dtype='int32x4')" for product in products)])
    fenced = f"{_FENCE}T.reinterpret({sums}, dtype='float32x4'), dtype='float32x4')"
    return f"{_SUM} = T.reinterpret({fenced}, dtype='int32x4')"


_SMULL = _added_in_pairs(" + ".join(_HALF_PRODUCTS))
_SMULL_FULL = _added_in_pairs(*_HALF_PRODUCTS)
"""The outer fence keeps LLVM from adding the products of several steps up first, for which registers do not suffice.
The inner one has sums read in the type in which they are written: else LLVM leaves some of them in memory.

Sums are added up modulo 2^32.
Two products of signed bytes (at most 128 * 127 each) fit int16, so NEON adds up two before it widens to int32; not so
where both factors may be -128.
"""

DOTS: Mapping[str, Dot] = {
    "vnni": Dot(
        group=4, activation="uint8", taken=0, multiplies=1, others=0, latency=5, scratch=0,
        body=_VPDPBUSD,
    ),
    "avx_vnni": Dot(
        group=4, activation="uint8", taken=0, multiplies=1, others=0, latency=5, scratch=0,
        body=_VPDPBUSD,
    ),
    "pmaddwd": Dot(
        group=2, activation="int16", taken=0, multiplies=1, others=1, latency=1, scratch=1,
        body=_PMADDWD,
    ),
    "vpdpwssd": Dot(
        group=2, activation="int16", taken=0, multiplies=1, others=0, latency=5, scratch=0,
        body=_VPDPWSSD,
    ),
    "sdot": Dot(group=4, activation="uint8", taken=128, multiplies=1, others=0, latency=4, scratch=0, body=_SDOT),
    "smull": Dot(group=4, activation="uint8", taken=128, multiplies=3, others=0, latency=4, scratch=5, body=_SMULL),
    "i8mm": Dot(group=4, activation="uint8", taken=0, multiplies=1, others=0, latency=4, scratch=0, body=_USDOT),
}  # fmt: skip
"""What the ``dot_product`` of a target stands for, and what its CPU has beside it."""

WORDS: Mapping[str, str] = {"vnni": "vpdpwssd", "avx_vnni": "vpdpwssd", "pmaddwd": "pmaddwd"}
"""The row of ``DOTS`` that multiplies int16 by int16, by the ``dot_product`` of a target."""

_INSTRUCTIONS = {
    "vnni": "llvm.x86.avx512.vpdpbusd.{bits}",
    "avx_vnni": "llvm.x86.avx512.vpdpbusd.{bits}",
    "vpdpwssd": "llvm.x86.avx512.vpdpwssd.{bits}",
    "sdot": "llvm.aarch64.neon.sdot",
    "smull": "llvm.aarch64.neon.smull",
    "i8mm": "llvm.aarch64.neon.usdot",
}
_PMADDWD_BY_BITS = {128: "llvm.x86.sse2.pmadd.wd", 256: "llvm.x86.avx2.pmadd.wd", 512: "llvm.x86.avx512.pmaddw.d.512"}

_READS = {
    BYTES: ("({group},)", "A[0:{group}]", "T.Cast('int32', A[vk])"),
    WORD: ("(1,)", "A[0:1]", "((A[0] >> T.Cast('int32', vk * T.int64({shift}))) & {mask})"),
    (TRANSPOSED, "uint8"): ("({group}, {lanes})", "A[0:{group}, 0:{lanes}]", "T.Cast('int32', A[vk, vi])"),
    (TRANSPOSED, "int16"): (
        "({lanes},)",
        "A[0:{lanes}]",
        "((A[vi] >> T.Cast('int32', vk * T.int64({shift}))) & {mask})",
    ),
}
"""Shape of the activations, the region that a step reads, and one value of it."""

_ACTIVATIONS = {
    BYTES: "T.broadcast(T.reinterpret(A.vload([0], '{activation}x{group}'), dtype='int32'), {lanes})",
    WORD: "T.broadcast(A[0], {lanes})",
    (TRANSPOSED, "uint8"): (
        "T.reinterpret(T.Shuffle([A.vload([0, 0], 'uint8x{elements}')], [{order}]), dtype='int32x{lanes}')"
    ),
    (TRANSPOSED, "int16"): "A.vload([0], 'int32x{lanes}')",
}

_FRAME = """
@T.prim_func(s_tir=True)
def dot(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, {shape}, '{stored}', offset_factor=1{strides})
    B = T.match_buffer(b, ({lanes}, {group}), '{weights}', offset_factor=1)
    C = T.match_buffer(c, ({lanes},), 'int32', offset_factor=1, scope='local')
    with T.sblock('root'):
        T.reads(C[0:{lanes}], {read}, B[0:{lanes}, 0:{group}])
        T.writes(C[0:{lanes}])
        {body}
"""

_MEANING = """for i in range({lanes}):
            for k in range(T.int64({group})):
                with T.sblock('update'):
                    vi, vk = T.axis.remap('SR', [i, k])
                    C[vi] = C[vi] + {value} * T.Cast('int32', B[vi, vk])"""


def dot_of(machine: Machine) -> Dot | None:
    """Return how the machine multiplies bytes; None where floats serve it as well."""
    return DOTS.get(machine.dot_product)


def known_dot(machine: Machine) -> Dot:
    """Return how the machine multiplies bytes, for code that is only reached where it does."""
    return DOTS[machine.dot_product]


def products(value: te.PrimExpr, weight: te.PrimExpr) -> Any:
    """Describe one multiplication of a template; ``dot`` recognises it."""
    return value.astype("int32") * weight.astype("int32")


def part_of_word(word: te.PrimExpr, place: te.PrimExpr, way: Dot) -> Any:
    """Describe one of the values that an int32 word holds side by side; ``place`` is int64, as TVM's graphs count."""
    shift = 32 // way.group
    return (word >> (place * shift).astype("int32")) & ((1 << shift) - 1)


def widened(image: te.Tensor) -> te.Tensor:
    """Describe a copy in int16."""
    from tvm import te

    return te.compute(image.shape, lambda *at: image(*at).astype("int16"), name="widen")


def dot(
    sch: Schedule, loop: LoopRV, machine: Machine, reads: str, weights: str = "int8",
    *, full: bool = False, by: str | None = None, later: bool = False,
) -> None:  # fmt: skip
    """Compute what is inside ``loop`` (lanes by a group of channels) with the machine's instructions.

    ``weights`` may be int16 where activations are. ``full``: among int8 weights may be -128. ``by`` is a row of
    ``DOTS`` other than that of the machine's ``dot_product``. ``later``: by ``tensorized``, when nothing is left inside
    that is computed under a condition, which TVM cannot tensorize.
    """
    name = _intrinsic(machine, by or machine.dot_product, reads, weights, full=full)
    if later:
        sch.annotate(loop, LATER, name)
    else:
        sch.tensorize(loop, name)


def tensorized(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel in which loops that were to be tensorized later are."""
    from tvm import s_tir

    if not any(LATER in loop.annotations for loop in rewriting.loops(function.body)):
        return function
    sch = s_tir.Schedule(function.with_body(rewriting.with_own_axes(function.body)))
    for block in primitives.blocks(sch):
        for loop in sch.get_loops(block):
            if LATER in sch.get(loop).annotations:
                name = str(sch.get(loop).annotations[LATER])
                sch.unannotate(loop, LATER)
                sch.tensorize(loop, name)
                break
    return sch.mod["main"]


def _order(lanes: int, group: int) -> str:
    return ", ".join(str(row * lanes + lane) for lane in range(lanes) for row in range(group))


def _intrinsic(machine: Machine, by: str, reads: str, weights: str, *, full: bool) -> str:
    """Return the name of the tensor intrinsic, registered when it is first asked for."""
    way, lanes = DOTS[by], machine.lanes
    pattern = reads if reads in _READS else (reads, way.activation)
    instructions = {**_INSTRUCTIONS, "pmaddwd": _PMADDWD_BY_BITS.get(32 * lanes, "")}
    stored = "int32" if reads == WORD or pattern == (TRANSPOSED, "int16") else way.activation
    words: dict[str, Any] = {
        "lanes": lanes, "group": way.group, "elements": way.group * lanes, "bytes": 4 * lanes,
        "instruction": instructions[by].format(bits=32 * lanes),
        "activation": way.activation, "stored": stored, "weights": weights,
        "shift": 32 // way.group, "mask": (1 << 32 // way.group) - 1, "order": _order(lanes, way.group),
        "strides": f", strides=[{lanes}, 1]" if pattern == (TRANSPOSED, "uint8") else "",
    }  # fmt: skip
    words["shape"], words["read"], words["value"] = (part.format(**words) for part in _READS[pattern])
    words["activations"] = _ACTIVATIONS[pattern].format(**words)
    name = f"forge.{by}.{lanes}.{reads}.{weights}.{full}"
    body = _SMULL_FULL if full and by == "smull" else way.body
    register(name, _FRAME, _MEANING, body, words)
    return name


def register(name: str, frame: str, meaning: str, body: str, words: Mapping[str, Any]) -> None:
    """Make a tensor intrinsic known by what it means and what it does, two bodies of one frame, unless it is."""
    from tvm import script
    from tvm.s_tir import TensorIntrin

    if TensorIntrin.get(name, allow_missing=True) is None:
        texts = (frame.format(**words, body=part.format(**words)) for part in (meaning, body))
        TensorIntrin.register(name, *(script.from_source(text) for text in texts))
