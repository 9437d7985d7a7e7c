"""Products of int8 by blocks of registers: four pixels by four filters, whose products share what they load (NEON).

One vector holds the channels of neighbouring pixels (or rows of a matrix), another the weights of some filters. Dot
products take a pixel out of it by its place; a product of matrices takes two pixels times two filters at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from forge_pipeline.codegen.int8.isa.dot_product import ISSUED, SIGN_BIT, products
from forge_pipeline.codegen.int8.isa.instruction import (
    Instruction,
    extents_of,
    multiply_add,
    register,
    reinterpret,
    shuffle,
    whole,
)
from forge_pipeline.codegen.layout.builder import Array
from forge_pipeline.codegen.tir.machine import LOAD_COST, LOAD_PORTS, WEIGHT_COST, Machine

LANES, PIXELS = 4, 4
"""Filters and pixels of a block: its sums are as many vectors of four."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads the pixels of a block, ``stride`` apart, as script.

    ``layout`` says how activations lie: ``image`` (pixels, 4), ``row`` (pixels * 4), ``halves`` (pixels, 2, 4), or
    ``raw``, an image of uint8 that is to be made signed.
    """

    stride: int
    layout: str

    def load(self, pixel: int, count: int, dtype: str) -> str:
        """Return a load of ``count`` bytes from a pixel on."""
        at = pixel * self.stride
        place = {"row": f"{at * LANES}", "halves": f"{at}, 0, 0"}.get(self.layout, f"{at}, 0")
        return f"A.vload([{place}], '{dtype}x{count}')"

    def pixels(self, first: int, count: int, width: int, *, signed: bool) -> str:
        """Return ``count`` pixels of ``width`` bytes in one vector."""
        dtype = "int8" if signed and self.layout != "raw" else "uint8"
        if self.stride == 1:
            found = self.load(first, count * width, dtype)
        else:
            parts = ", ".join(self.load(first + at, width, dtype) for at in range(count))
            found = shuffle(parts, range(count * width))
        if self.layout != "raw":
            return found
        return reinterpret(f"{found} ^ T.broadcast(T.uint8({SIGN_BIT}), 16)", "int8x16")


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroKernel:
    """Sixteen sums, and what a step of ``k_inner`` channels adds to them with ``instructions``.

    ``multiplies`` and ``moves`` count instructions; the latter serve all filters. ``loads`` are those of pixels side
    by side, ``weight_vectors`` those of weights; ``scratch`` registers are needed besides. ``signed``: activations are
    multiplied as x - 128. ``axes`` maps letters to extents: those of ``pixel``, of ``lane`` (a filter) and of ``step``,
    most significant first, in the order in which ``sums`` and ``weights`` have them. ``emit`` writes statements.
    """

    name: str
    instructions: tuple[Instruction, ...]
    emit: Callable[[Reader], list[str]]
    multiplies: int
    moves: int = 0
    loads: int = 1
    weight_vectors: int = 1
    scratch: int = 0
    signed: bool
    axes: Mapping[str, int]
    pixel: str = "p"
    lane: str = "i"
    step: str = "k"
    sums: str = "pi"
    weights: str

    @property
    def k_inner(self) -> int:
        """Channels of a step."""
        found = 1
        for axis in self.step:
            found *= self.axes[axis]
        return found

    @property
    def reads_halves(self) -> bool:
        """Whether a step takes two blocks of channels, which lie side by side in a copy."""
        return self.k_inner > LANES

    def shape(self, letters: str) -> tuple[int, ...]:
        """Return the extents of some axes."""
        return tuple(self.axes[axis] for axis in letters)

    def sums_of(self, pixel: int) -> str:
        """Return the script of the sums of a pixel, one vector."""
        if len(self.lane) == 1:
            return f"C[{pixel}, T.ramp(0, 1, 4)]"
        halves = ", ".join(f"C[{pixel // 2}, {half}, 0, T.ramp(0, 1, 4)]" for half in range(2))
        first = 2 * (pixel % 2)
        return shuffle(halves, (first, first + 1, first + 4, first + 5))

    def registers(self, mr: int, nr: int, *, raw: bool) -> int:
        """Return how many registers a tile of ``mr`` pixels by ``nr`` vectors of filters occupies."""
        held = mr * nr + mr // PIXELS * self.loads + nr * self.weight_vectors + self.scratch
        return held + (1 if raw and self.signed else 0)

    def step_cycles(self, machine: Machine, mr: int, nr: int, *, stride: int, raw: bool) -> float:
        """Cycles of one step, for a tile; ``raw`` activations are yet to be made signed."""
        blocks = mr // PIXELS
        loads = blocks * (self.loads if stride == 1 else PIXELS) + nr * self.weight_vectors
        gathered = 0 if stride == 1 else PIXELS - self.loads
        moves = blocks * (self.moves + (self.loads if raw and self.signed else 0) + gathered)
        return cycles(machine, blocks * nr * self.multiplies + moves, loads, nr * self.weight_vectors)

    def split(self, letters: str, index: Any) -> tuple[Any, ...]:
        """Return where the axes ``letters``, two at most, have the ``index``-th of their elements."""
        if len(letters) == 1:
            return (index,)
        inner = self.axes[letters[1]]
        return index // inner, index % inner

    def place(self, pixel: Any, lane: Any) -> tuple[Any, ...]:
        """Return where the sums hold a pixel's filter."""
        found = {
            **dict(zip(self.pixel, self.split(self.pixel, pixel), strict=True)),
            **dict(zip(self.lane, self.split(self.lane, lane), strict=True)),
        }
        return tuple(found[axis] for axis in self.sums)

    def pack(self, weight: Array) -> Array:
        """Return (filters, channels, h, w), whole blocks of both, as (filters / 4, blocks, h, w, *axes of weights)."""
        filters, channels, height, width = weight.shape
        inner = [*self.shape(self.lane), *self.shape(self.step)]
        split = weight.reshape(filters // LANES, LANES, channels // self.k_inner, self.k_inner, height, width)
        split = split.transpose(0, 2, 4, 5, 1, 3).reshape(-1, channels // self.k_inner, height, width, *inner)
        order = [4 + (self.lane + self.step).index(axis) for axis in self.weights]
        return split.transpose(0, 1, 2, 3, *order).copy()

    def term(self, activation: Any, weight: Any, sums: tuple[Any, ...], step: tuple[Any, ...]) -> te.PrimExpr:
        """Describe one multiplication: ``activation(pixel, *steps)`` times ``weight(*axes)``; a pattern knows it."""
        at = dict(zip(self.sums + self.step, (*sums, *step), strict=True))
        steps = step if self.reads_halves else (self._join(self.step, at),)
        return products(activation(self._join(self.pixel, at), *steps), weight(*(at[axis] for axis in self.weights)))

    def _join(self, letters: str, at: Mapping[str, Any]) -> Any:
        return at[letters] if len(letters) == 1 else at[letters[0]] * self.axes[letters[1]] + at[letters[1]]

    def _join_script(self, letters: str) -> str:
        return (
            f"{{{letters}}}" if len(letters) == 1 else f"{{{letters[0]}}} * {self.axes[letters[1]]} + {{{letters[1]}}}"
        )

    def tensorize(self, sch: Schedule, loop: LoopRV, stride: int, layout: str) -> None:
        """Compute what is inside ``loop``, the axes of sums and steps, with the instructions, as ``Reader`` reads."""
        sch.tensorize(loop, self.intrinsic(stride, layout))

    def intrinsic(self, stride: int, layout: str) -> str:
        """Return the name of the tensor intrinsic, registered when it is first asked for."""
        name, reach, raw = f"forge.neon.{self.name}.{stride}.{layout}", (PIXELS - 1) * stride + 1, layout == "raw"
        shape = {"row": (reach * LANES,), "halves": (reach, 2, LANES)}.get(layout, (reach, LANES))
        pixel, step = self._join_script(self.pixel), self._join_script(self.step)
        if stride != 1:
            pixel = f"({pixel}) * {stride}"
        if self.reads_halves:
            step = ", ".join(f"{{{axis}}}" for axis in self.step)
        at = f"({pixel}) * {LANES} + ({step})" if layout == "row" else f"{pixel}, {step}"
        value = f"(T.Cast('int32', A[{at}]) - {SIGN_BIT})" if raw else f"T.Cast('int32', A[{at}])"
        params = {
            "stored": "int8" if self.signed and not raw else "uint8", "shape": extents_of(shape), "read": whole(shape),
        }  # fmt: skip
        for buffer, axes in (("weights", self.weights), ("sums", self.sums)):
            params |= {buffer: extents_of(self.shape(axes)), f"all_{buffer}": whole(self.shape(axes))}
        pattern = multiply_add(self.axes, self.step, self.sums, value, self.weights)
        register(name, _FRAME, pattern, "\n        ".join(self.emit(Reader(stride=stride, layout=layout))), params)
        return name


def cycles(machine: Machine, arithmetic: int, loads: int, weights: int) -> float:
    """Return the cycles of so many instructions; long sums hide their latency."""
    bound = max(arithmetic / machine.fma_ports, (arithmetic + loads) / ISSUED, loads / LOAD_PORTS)
    return bound + LOAD_COST * loads + WEIGHT_COST * weights


def by_element(instruction: Instruction, reader: Reader, *, signed: bool) -> list[str]:
    """Return the statements of a dot product of each pixel, taken out of a vector, by all filters.

    What is signed has the element second: SDOT takes its second factor by element, and so does what LLVM knows as
    SUDOT, which is USDOT with its factors exchanged.
    """
    dtype, statements = "int8" if signed else "uint8", []
    packed = reinterpret(reader.pixels(0, PIXELS, LANES, signed=signed), "int32x4")
    for pixel in range(PIXELS):
        sums = f"C[{pixel}, T.ramp(0, 1, 4)]"
        activation = reinterpret(shuffle(packed, [pixel] * 4), f"{dtype}x16")
        weights = "B.vload([0, 0], 'int8x16')"
        factors = (weights, activation) if signed else (activation, weights)
        statements.append(f"{sums} = {instruction.script('int32x4', sums, *factors)}")
    return statements


_FRAME = """
@T.prim_func(s_tir=True)
def kernel(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, {shape}, '{stored}', offset_factor=1)
    B = T.match_buffer(b, {weights}, 'int8', offset_factor=1)
    C = T.match_buffer(c, {sums}, 'int32', offset_factor=1, scope='local')
    with T.sblock('root'):
        T.reads(C[{all_sums}], A[{read}], B[{all_weights}])
        T.writes(C[{all_sums}])
        {body}
"""
