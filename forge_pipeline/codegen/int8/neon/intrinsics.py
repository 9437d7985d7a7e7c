"""Products of bytes in NEON registers: four pixels by four filters, whose products share what they load.

One vector holds the channels of neighbouring pixels (or rows of a matrix), another the weights of some filters. Dot
products take a pixel out of it by its place; a product of matrices takes two pixels times two filters at once
(Arm's architecture manual: SDOT and USDOT by element, USMMLA; SMULL and SADALP where a CPU has neither).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge_pipeline.codegen.int8.dot_product import ISSUED, products, register
from forge_pipeline.codegen.tir.machine import LOAD_COST, LOAD_PORTS, WEIGHT_COST, Machine

if TYPE_CHECKING:
    from tvm import te
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import LoopRV

LANES = 4
"""Sums in a vector, filters of a unit."""
PIXELS = 4
"""Pixels of a unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Sixteen sums, and what a step of ``channels`` along the reduction takes.

    ``multiplies`` and ``moves`` count instructions; the latter serve all filters. ``loads`` are those of pixels side
    by side. ``weights`` are vectors of weights, ``scratch`` registers are needed besides. ``signed``: activations are
    multiplied as x - 128. ``spatial`` and ``reduced`` are the extents of the axes of sums and of steps; ``packed``
    those of weights, and ``lanes`` those of what each filter has one of.
    """

    channels: int
    multiplies: int
    moves: int
    loads: int
    weights: int
    scratch: int
    signed: bool
    spatial: tuple[int, ...]
    reduced: tuple[int, ...]
    packed: tuple[int, ...]
    lanes: tuple[int, ...]

    def registers(self, pixels: int, vectors: int, *, raw: bool) -> int:
        """Return how many registers a tile of pixels by vectors of filters occupies."""
        held = pixels * vectors + pixels // PIXELS * self.loads + vectors * self.weights + self.scratch
        return held + (1 if raw and self.signed else 0)

    def step_cycles(self, machine: Machine, pixels: int, vectors: int, *, stride: int, raw: bool) -> float:
        """Cycles of one step, for a tile; ``raw`` activations are yet to be made signed."""
        units = pixels // PIXELS
        loads = units * (self.loads if stride == 1 else PIXELS) + vectors * self.weights
        gathered = 0 if stride == 1 else PIXELS - self.loads
        moves = units * (self.moves + (self.loads if raw and self.signed else 0) + gathered)
        return cycles(machine, units * vectors * self.multiplies + moves, loads, vectors * self.weights)


def cycles(machine: Machine, arithmetic: int, loads: int, weights: int) -> float:
    """Return the cycles of so many instructions; long sums hide their latency."""
    bound = max(arithmetic / machine.fma_ports, (arithmetic + loads) / ISSUED, loads / LOAD_PORTS)
    return bound + LOAD_COST * loads + WEIGHT_COST * weights


def _dot(*, signed: bool) -> Unit:
    return Unit(
        channels=4, multiplies=4, moves=0, loads=1, weights=1, scratch=0, signed=signed,
        spatial=(4, 4), reduced=(4,), packed=(4, 4), lanes=(4,),
    )  # fmt: skip


UNITS: Mapping[str, Unit] = {
    "usmmla": Unit(
        channels=8, multiplies=4, moves=0, loads=2, weights=2, scratch=0, signed=False,
        spatial=(2, 2, 2, 2), reduced=(2, 4), packed=(2, 2, 2, 4), lanes=(2, 2),
    ),
    "usdot": _dot(signed=False),
    "sdot": _dot(signed=True),
    "smull": Unit(
        channels=4, multiplies=12, moves=8, loads=1, weights=1, scratch=11, signed=True,
        spatial=(4, 4), reduced=(2, 2), packed=(2, 4, 2), lanes=(4,),
    ),
}  # fmt: skip
"""By the instruction that multiplies."""

BY_DOT_PRODUCT: Mapping[str, tuple[str, ...]] = {"sdot": ("sdot",), "smull": ("smull",), "i8mm": ("usmmla", "usdot")}
"""The units of a target's ``dot_product``."""

SINGLE: Mapping[str, tuple[int, int]] = {"sdot": (1, 2), "smull": (3, 5), "i8mm": (1, 1)}
"""Where ``integer_dot`` reads each pixel for itself: instructions for a vector of sums, and those to read a pixel."""


def pack(weight: Any, unit: str) -> Any:
    """Return (filters, channels, h, w), both multiples of a unit's, as (filters / 4, blocks, h, w, *a unit's axes)."""
    way = UNITS[unit]
    filters, channels, height, width = weight.shape
    split = weight.reshape(filters // LANES, LANES, channels // way.channels, way.channels, height, width)
    blocked = split.transpose(0, 2, 4, 5, 1, 3)
    if unit == "smull":  # pairs of channels of all filters, then the other pairs
        blocked = blocked.reshape(*blocked.shape[:-1], 2, 2).swapaxes(-2, -3)
    return blocked.reshape(*blocked.shape[:4], *way.packed).copy()


def term(unit: str, activation: Any, weight: Any, spatial: tuple[Any, ...], reduced: tuple[Any, ...]) -> te.PrimExpr:
    """Describe one multiplication: ``activation(pixel, *steps)`` times ``weight(*axes)``; an intrinsic knows it."""
    if unit == "usmmla":
        pair, high, pixel, low = spatial
        return products(activation(pair * 2 + pixel, *reduced), weight(high, low, *reduced))
    pixel, lane = spatial
    if unit == "smull":
        half, byte = reduced
        return products(activation(pixel, half * 2 + byte), weight(half, lane, byte))
    return products(activation(pixel, *reduced), weight(lane, *reduced))


def lane_axes(unit: str, lane: Any) -> tuple[Any, ...]:
    """Return where a filter of a vector lies, in what has one for each."""
    return (lane // 2, lane % 2) if unit == "usmmla" else (lane,)


def sum_axes(unit: str, pixel: Any, lane: Any) -> tuple[Any, ...]:
    """Return where a unit's sums hold a pixel's filter."""
    return (pixel // 2, lane // 2, pixel % 2, lane % 2) if unit == "usmmla" else (pixel, lane)


def multiply(sch: Schedule, loop: LoopRV, unit: str, stride: int, layout: str) -> None:
    """Compute what is inside ``loop``, a unit's axes, with its instructions; pixels are ``stride`` apart.

    ``layout`` says how activations lie: ``image`` (pixels, 4), ``row`` (pixels * 4), ``halves`` (pixels, 2, 4). What a
    signed unit reads was made signed, unless it is ``raw``, an image of uint8.
    """
    name = f"forge.neon.{unit}.{stride}.{layout}"
    way, reach = UNITS[unit], (PIXELS - 1) * stride + 1
    pixel = "vq * 2 + vp" if unit == "usmmla" else "vp"
    scaled = f"({pixel}) * {stride}" if stride != 1 else pixel
    step = {"usmmla": "vh, vk", "smull": "vh * 2 + vk"}.get(unit, "vk")
    shapes = {
        "image": ((reach, LANES), f"A[{scaled}, {step}]"),
        "raw": ((reach, LANES), f"A[{scaled}, {step}]"),
        "row": ((reach * LANES,), f"A[({scaled}) * 4 + ({step})]"),
        "halves": ((reach, 2, LANES), f"A[{scaled}, {step}]"),
    }
    shape, value = shapes[layout]
    raw = layout == "raw"
    words = {
        "stored": "int8" if way.signed and not raw else "uint8",
        "shape": _tuple(shape), "read": _whole(shape),
        "weights": _tuple(way.packed), "all_weights": _whole(way.packed),
        "sums": _tuple(way.spatial), "all_sums": _whole(way.spatial),
        "value": f"(T.Cast('int32', {value}) - 128)" if raw else f"T.Cast('int32', {value})",
    }  # fmt: skip
    lines = _BODIES[unit](_Reader(stride=stride, layout=layout, raw=raw))
    register(name, _FRAME, _MEANINGS[unit], "\n        ".join(lines), words)
    sch.tensorize(loop, name)


def _tuple(extents: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, extents))},)"


def _whole(extents: tuple[int, ...]) -> str:
    return ", ".join(f"0:{extent}" for extent in extents)


_FRAME = """
@T.prim_func(s_tir=True)
def unit(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, {shape}, '{stored}', offset_factor=1)
    B = T.match_buffer(b, {weights}, 'int8', offset_factor=1)
    C = T.match_buffer(c, {sums}, 'int32', offset_factor=1, scope='local')
    with T.sblock('root'):
        T.reads(C[{all_sums}], A[{read}], B[{all_weights}])
        T.writes(C[{all_sums}])
        {body}
"""
_DOT = """for p, i, k in T.grid(4, 4, 4):
            with T.sblock('update'):
                vp, vi, vk = T.axis.remap('SSR', [p, i, k])
                C[vp, vi] = C[vp, vi] + {value} * T.Cast('int32', B[vi, vk])"""
_MEANINGS = {
    "usdot": _DOT,
    "sdot": _DOT,
    "smull": """for p, i, h, k in T.grid(4, 4, 2, 2):
            with T.sblock('update'):
                vp, vi, vh, vk = T.axis.remap('SSRR', [p, i, h, k])
                C[vp, vi] = C[vp, vi] + {value} * T.Cast('int32', B[vh, vi, vk])""",
    "usmmla": """for q, j, p, i, h, k in T.grid(2, 2, 2, 2, 2, 4):
            with T.sblock('update'):
                vq, vj, vp, vi, vh, vk = T.axis.remap('SSSSRR', [q, j, p, i, h, k])
                C[vq, vj, vp, vi] = C[vq, vj, vp, vi] + {value} * T.Cast('int32', B[vj, vi, vh, vk])""",
}


def call(instruction: str, dtype: str, *arguments: str) -> str:
    """Return the script of a NEON instruction."""
    name = f"T.llvm_lookup_intrinsic_id('llvm.aarch64.neon.{instruction}')"
    return f"T.call_llvm_pure_intrin({name}, {', '.join(arguments)}, dtype='{dtype}')"


def shuffle(vectors: str, places: Any) -> str:
    """Return the script of a vector made of elements of others."""
    return f"T.Shuffle([{vectors}], [{', '.join(map(str, places))}])"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Reads the pixels of a unit."""

    stride: int
    layout: str
    raw: bool

    def load(self, pixel: int, count: int, dtype: str) -> str:
        """Return the script of a load of ``count`` bytes from a pixel on."""
        at = pixel * self.stride
        place = {"image": f"{at}, 0", "raw": f"{at}, 0", "row": f"{at * LANES}", "halves": f"{at}, 0, 0"}[self.layout]
        return f"A.vload([{place}], '{dtype}x{count}')"

    def pixels(self, first: int, count: int, width: int, dtype: str) -> str:
        """Return the script of ``count`` pixels of ``width`` bytes in one vector."""
        if self.stride == 1:
            found = self.load(first, count * width, dtype)
        else:
            parts = ", ".join(self.load(first + at, width, dtype) for at in range(count))
            found = shuffle(parts, range(count * width))
        return f"T.reinterpret({found} ^ T.broadcast(T.uint8(128), 16), dtype='int8x16')" if self.raw else found


def _matrix(reader: _Reader) -> list[str]:
    lines = []
    for pair in range(2):
        pixels = reader.pixels(2 * pair, 2, 8, "uint8")
        for high in range(2):
            total = f"C[{pair}, {high}, 0, T.ramp(0, 1, 4)]"
            weights = f"B.vload([{high}, 0, 0, 0], 'int8x16')"
            lines.append(f"{total} = {call('usmmla', 'int32x4', total, pixels, weights)}")
    return lines


def _usdot(reader: _Reader) -> list[str]:
    return _dots(reader, "usdot", "uint8")


def _sdot(reader: _Reader) -> list[str]:
    return _dots(reader, "sdot", "int8")


def _dots(reader: _Reader, instruction: str, signs: str) -> list[str]:
    words = f"T.reinterpret({reader.pixels(0, 4, 4, 'uint8' if reader.raw else signs)}, dtype='int32x4')"
    weights, lines = "B.vload([0, 0], 'int8x16')", []
    for pixel in range(PIXELS):
        total = f"C[{pixel}, T.ramp(0, 1, 4)]"
        activation = f"T.reinterpret({shuffle(words, [pixel] * 4)}, dtype='{signs}x16')"
        # SDOT takes its second factor by element, and so does what LLVM knows as SUDOT
        factors = (weights, activation) if instruction == "sdot" else (activation, weights)
        lines.append(f"{total} = {call(instruction, 'int32x4', total, *factors)}")
    return lines


def _long(reader: _Reader) -> list[str]:
    """Products of two channels, at most 128 * 127 each, fit int16; ``integer_dot`` explains the fences."""
    pairs = f"T.reinterpret({reader.pixels(0, 4, 4, 'uint8' if reader.raw else 'int8')}, dtype='int16x8')"
    lines = []
    for pixel in range(PIXELS):
        total = f"C[{pixel}, T.ramp(0, 1, 4)]"
        halves = []
        for half in range(2):
            one = f"T.reinterpret({shuffle(pairs, [2 * pixel + half] * 4)}, dtype='int8x8')"
            halves.append(call("smull", "int16x8", one, f"B.vload([{half}, 0, 0], 'int8x8')"))
        added = f"{_fenced(total)} + {call('saddlp', 'int32x4', ' + '.join(halves))}"
        lines.append(f"{total} = {_fenced(added)}")
    return lines


def _fenced(sums: str) -> str:
    fence = "T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id('llvm.arithmetic.fence'), "
    floats = f"T.reinterpret({sums}, dtype='float32x4')"
    return f"T.reinterpret({fence}{floats}, dtype='float32x4'), dtype='int32x4')"


_BODIES = {"usmmla": _matrix, "usdot": _usdot, "sdot": _sdot, "smull": _long}
