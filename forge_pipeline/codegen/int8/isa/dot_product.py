"""Dot products of int8: a vector of int32 sums takes some neighbouring channels in a step, for schedules to tensorize.

Activations are uint8 with any zero point, weights int8 (or shifted to it) without one, sums int32. Nothing saturates:
where a CPU has no instruction for the purpose, products are made of 16-bit halves that hold them, or activations are
widened to int16 first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tvm import s_tir, te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from forge_pipeline.codegen.int8.isa.instruction import (
    Instruction,
    extents_of,
    multiply_add,
    register,
    reinterpret,
    shuffle,
    whole,
)
from forge_pipeline.codegen.tir import primitives, rewriting
from forge_pipeline.codegen.tir.machine import LOAD_COST, LOAD_PORTS, WEIGHT_COST, Machine

WEIGHTS, READS = "forge.weights", "forge.reads"
"""Annotations of a template: the type of its weights, and how its steps read activations (``Reads``)."""

LATER = "forge.later"
"""The annotation of a loop that is to be tensorized later: its intrinsic."""

ISSUED = 5
"""Instructions that a core starts in a cycle, when sums are long."""

SIGN_BIT, SIGN_BITS = 128, 0x80808080 - (1 << 32)
"""What an exclusive or with it takes from a uint8 that is then read as an int8, and that for four bytes at once."""

Reads = Literal["bytes", "packed", "transposed"]
BYTES: Reads = "bytes"
PACKED: Reads = "packed"
TRANSPOSED: Reads = "transposed"
"""How a step reads its activations: ``k_inner`` values for all lanes, these in one int32, or some for each lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """What the instructions of a step take, as script: vectors of ``lanes`` int32 sums.

    ``activations`` is a vector of int32 that each hold what a lane takes. ``full``: among int8 weights may be -128.
    """

    lanes: int
    k_inner: int
    activations: str
    weight_dtype: str
    full: bool

    @property
    def bits(self) -> int:
        """Those of a vector."""
        return 32 * self.lanes

    @property
    def int32(self) -> str:
        """The type of the sums."""
        return f"int32x{self.lanes}"

    @property
    def sums(self) -> str:
        """The sums so far."""
        return f"C[T.ramp(0, 1, {self.lanes})]"

    def activations_as(self, dtype: str) -> str:
        """Return the activations as values of a type."""
        return reinterpret(self.activations, f"{dtype}x{self.k_inner * self.lanes}")

    def signed(self) -> str:
        """Return the activations less 128, as int8."""
        flipped = f"{self.activations} ^ T.broadcast(T.int32({SIGN_BITS}), {self.lanes})"
        return reinterpret(flipped, f"int8x{self.k_inner * self.lanes}")

    def weights_as(self, dtype: str) -> str:
        """Return the weights, widened to a type where they are stored in another."""
        elements = self.k_inner * self.lanes
        loaded = f"B.vload([0, 0], '{self.weight_dtype}x{elements}')"
        return loaded if dtype == self.weight_dtype != "int16" else f"T.Cast('{dtype}x{elements}', {loaded})"


@dataclass(frozen=True, slots=True, kw_only=True)
class DotProduct:
    """Instructions that add to each lane of a vector of sums the products of ``k_inner`` neighbouring channels.

    ``emit`` writes the new sums as script, with ``instructions``. Activations are read as ``activation``;
    ``activation_offset`` is what is taken from every one first (an instruction may want them signed). A step has
    ``multiplies`` instructions for the multiplier and ``others`` beside them, a sum can be added to after ``latency``
    cycles, and ``scratch`` registers are needed besides sums, weights and an activation. ``is_single``: a step is one
    instruction that takes activations from memory, so that loads and what is around it count. ``by_element``:
    activations of all pixels stay in registers, each read by ``reading`` instructions. ``adds_int16``: two products are
    added up in int16, where 128 times 128 twice has no room.
    """

    name: str
    instructions: tuple[Instruction, ...]
    emit: Callable[[Operands], str]
    k_inner: int
    activation: Literal["uint8", "int8", "int16"] = "uint8"
    weights: Literal["int8", "uint8"] = "int8"
    activation_offset: int = 0
    multiplies: int = 1
    others: int = 0
    latency: int
    scratch: int = 0
    is_single: bool = False
    by_element: bool = False
    reading: int = 0
    adds_int16: bool = False

    @property
    def widens(self) -> bool:
        """Whether activations are copied to int16 before they are read."""
        return self.activation == "int16"

    def fits(self, machine: Machine, mr: int, nr: int) -> bool:
        """Whether sums of ``mr`` pixels by ``nr`` vectors, weights and activations find room in registers."""
        activations = mr if self.by_element else 1
        return mr * nr + nr + activations + self.scratch <= machine.registers

    def step_cycles(self, machine: Machine, mr: int, nr: int) -> float:
        """Cycles of one step along the reduction, for a tile of sums."""
        loads, tile = mr + nr, mr * nr
        issued = (tile * (self.multiplies + self.others) + loads) / ISSUED
        bound = max(tile * self.multiplies / machine.fma_ports, issued, loads / LOAD_PORTS, self.latency)
        return bound + LOAD_COST * loads + WEIGHT_COST * nr


_FRAME = """
@T.prim_func(s_tir=True)
def dot(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, {shape}, '{stored}', offset_factor=1{strides})
    B = T.match_buffer(b, ({lanes}, {k_inner}), '{weights}', offset_factor=1, scope='{scope}')
    C = T.match_buffer(c, ({lanes},), 'int32', offset_factor=1, scope='local')
    with T.sblock('root'):
        T.reads(C[0:{lanes}], {read}, B[0:{lanes}, 0:{k_inner}])
        T.writes(C[0:{lanes}])
        {body}
"""


def products(value: te.PrimExpr, weight: te.PrimExpr) -> Any:
    """Describe one multiplication of a template; tensorize patterns recognise it."""
    return value.astype("int32") * weight.astype("int32")


def unpack_int32(packed: te.PrimExpr, place: te.PrimExpr, dot: DotProduct) -> Any:
    """Describe one of the values that an int32 holds side by side; ``place`` is int64, as TVM's graphs count."""
    shift = 32 // dot.k_inner
    return (packed >> (place * shift).astype("int32")) & ((1 << shift) - 1)


def to_int16(image: te.Tensor) -> te.Tensor:
    """Describe a copy in int16."""
    return te.compute(image.shape, lambda *at: image(*at).astype("int16"), name="widen")


def tensorize(
    sch: Schedule, loop: LoopRV, machine: Machine, dot: DotProduct, reads: str, weights: str = "int8",
    *, full: bool = False, later: bool = False, scope: str = "global",
) -> None:  # fmt: skip
    """Compute what is inside ``loop`` (lanes by ``k_inner`` channels) with the instructions of ``dot``.

    ``weights`` may be int16 where activations are. ``full``: among int8 weights may be -128. ``later``: by
    ``tensorize_rest``, when nothing is left inside that is computed under a condition, which TVM cannot tensorize.
    ``scope`` is that of the memory that weights are in.
    """
    name = intrinsic(dot, machine.lanes, reads, weights, full=full, scope=scope)
    if later:
        sch.annotate(loop, LATER, name)
    else:
        sch.tensorize(loop, name)


def tensorize_rest(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel in which loops that were to be tensorized later are."""
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


def intrinsic(dot: DotProduct, lanes: int, reads: str, weights: str, *, full: bool, scope: str = "global") -> str:
    """Return the name of the tensor intrinsic of a step, registered when it is first asked for."""
    k_inner, dtype = dot.k_inner, dot.activation
    shift, elements, stored, strides = 32 // k_inner, k_inner * lanes, "int32", ""
    shape: tuple[int, ...]
    part = f"(({{packed}} >> T.Cast('int32', {{{{k}}}} * T.int64({shift}))) & {(1 << shift) - 1})"
    if reads == BYTES:
        stored, shape, value = dtype, (k_inner,), "T.Cast('int32', A[{k}])"
        loaded = reinterpret(f"A.vload([0], '{dtype}x{k_inner}')", "int32")
        activations = f"T.broadcast({loaded}, {lanes})"
    elif reads == PACKED:
        shape, value, activations = (1,), part.format(packed="A[0]"), f"T.broadcast(A[0], {lanes})"
    elif dot.widens:
        shape, value, activations = (lanes,), part.format(packed="A[{i}]"), f"A.vload([0], 'int32x{lanes}')"
    else:
        stored, shape, value, strides = (
            dtype,
            (k_inner, lanes),
            "T.Cast('int32', A[{k}, {i}])",
            f", strides=[{lanes}, 1]",
        )
        order = [row * lanes + lane for lane in range(lanes) for row in range(k_inner)]
        activations = reinterpret(shuffle(f"A.vload([0, 0], 'uint8x{elements}')", order), f"int32x{lanes}")
    operands = Operands(lanes=lanes, k_inner=k_inner, activations=activations, weight_dtype=weights, full=full)
    name = f"forge.{dot.name}.{lanes}.{reads}.{weights}.{full}.{scope}"
    pattern = multiply_add({"i": lanes, "k": f"T.int64({k_inner})"}, "k", "i", value, "ik")
    params = {
        "lanes": lanes, "k_inner": k_inner, "weights": weights, "stored": stored, "strides": strides,
        "scope": scope, "shape": extents_of(shape), "read": f"A[{whole(shape)}]",
    }  # fmt: skip
    register(name, _FRAME, pattern, f"{operands.sums} = {dot.emit(operands)}", params)
    return name
