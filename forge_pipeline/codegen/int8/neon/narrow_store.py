"""From sums of a NEON unit to sixteen bytes, with instructions that round, narrow and saturate.

``Finish`` says what is computed; a unit's results leave as one vector. FCVTNS rounds half to even, the narrowing
instructions keep what does not fit at the ends of their range, so that clipping to all of it takes none of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from forge_pipeline.codegen.int8.dot_product import register
from forge_pipeline.codegen.int8.neon.intrinsics import UNITS, Unit, call, shuffle
from forge_pipeline.codegen.int8.requantize import Finish
from forge_pipeline.codegen.layout.affine import LEVELS, ROUNDS, Affine
from forge_pipeline.codegen.tir import primitives

if TYPE_CHECKING:
    from tvm import te
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import SBlockRV

STORE = "forge.store"
"""The annotation of the block that makes bytes of sums: its intrinsic."""


def name_of(unit: str, finish: Finish) -> str:
    """Return the name of the tensor intrinsic, registered when it is first asked for; the finish is quantized."""
    affine = finish.affine
    assert affine is not None  # noqa: S101 - who calls has looked
    low, high = finish.clip.steps(affine)
    has_offset = finish.offset is not None
    name = f"forge.neon.store.{unit}.{affine.zero}.{low:g}.{high:g}.{has_offset}"
    register(name, _FRAME, _meaning(unit, affine, low, high, has_offset=has_offset),
             _body(unit, affine, low, high, has_offset=has_offset), _words(unit, has_offset=has_offset))  # fmt: skip
    return name


def results_of(way: Unit) -> tuple[int, ...]:
    """Return the axes of a unit's bytes: of its pixels, then of its filters."""
    return (*way.lanes, *way.lanes)


def narrow(value: Callable[..., Any], shape: Sequence[Any], unit: str, finish: Finish) -> te.Tensor:
    """Describe the bytes of units: ``shape`` of them, each with the axes of ``results_of``."""
    from tvm import te

    attributes = {STORE: name_of(unit, finish)}
    return te.compute((*shape, *results_of(UNITS[unit])), value, name="narrow", attrs=attributes)


def find(sch: Schedule) -> SBlockRV | None:
    """Return the block that makes bytes of units."""
    return next((block for block in primitives.blocks(sch) if STORE in sch.get(block).annotations), None)


def store(sch: Schedule, block: SBlockRV, depth: int, unit: str) -> None:
    """Compute the units below loop ``depth`` with NEON's instructions."""
    loops, axes = sch.get_loops(block), len(results_of(UNITS[unit]))
    for loop in loops[depth:-axes]:
        sch.unroll(loop)
    sch.tensorize(loops[-axes], str(sch.get(block).annotations[STORE]))


_FRAME = """
@T.prim_func(s_tir=True)
def store(c: T.handle, s: T.handle, f: T.handle{more}, d: T.handle) -> None:
    C = T.match_buffer(c, {sums}, 'int32', offset_factor=1, scope='local')
    S = T.match_buffer(s, {lanes}, 'int32', offset_factor=1)
    F = T.match_buffer(f, {lanes}, 'float32', offset_factor=1){offset}
    D = T.match_buffer(d, {results}, 'uint8', offset_factor=1, scope='local')
    with T.sblock('root'):
        T.reads(C[{all_sums}], S[{all_lanes}], F[{all_lanes}]{read})
        T.writes(D[{all_results}])
        {body}
"""


def _words(unit: str, *, has_offset: bool) -> dict[str, str]:
    way = UNITS[unit]
    results = results_of(way)
    found = {}
    for name, extents in (("sums", way.spatial), ("lanes", way.lanes), ("results", results)):
        found[name] = f"({', '.join(map(str, extents))},)"
        found[f"all_{name}"] = ", ".join(f"0:{extent}" for extent in extents)
    found["more"] = ", g: T.handle" if has_offset else ""
    found["read"] = f", G[{found['all_lanes']}]" if has_offset else ""
    declared = f"\n    G = T.match_buffer(g, {found['lanes']}, 'float32', offset_factor=1)"
    found["offset"] = declared if has_offset else ""
    return found


def _meaning(unit: str, affine: Affine, low: float, high: float, *, has_offset: bool) -> str:
    total, lane, result = (
        ("vp, vi", "vi", "vp, vi") if unit != "usmmla" else ("vq, vj, vp, vi", "vj, vi", "vq, vp, vj, vi")
    )
    loops, extents = ("q, p, j, i", "2, 2, 2, 2") if unit == "usmmla" else ("p, i", "4, 4")
    axes = ", ".join(f"v{loop}" for loop in loops.split(", "))
    kinds = "S" * len(loops.split(", "))
    value = f"T.Cast('float32', C[{total}] + S[{lane}]) * F[{lane}]" + (f" + G[{lane}]" if has_offset else "")
    shifted = f"T.max(T.min({value}, T.float32({high!r})), T.float32({low!r})) + T.float32({ROUNDS!r})"
    moved = f"T.reinterpret({shifted}, dtype='int32')" + (f" + {affine.zero}" if affine.zero else "")
    return f"""for {loops} in T.grid({extents}):
            with T.sblock('narrow'):
                {axes} = T.axis.remap('{kinds}', [{loops}])
                D[{result}] = T.Cast('uint8', {moved})"""


def _body(unit: str, affine: Affine, low: float, high: float, *, has_offset: bool) -> str:
    lanes = ", ".join("0" for _ in UNITS[unit].lanes)
    narrowed = []
    for pixel in range(4):
        if unit == "usmmla":
            halves = ", ".join(f"C[{pixel // 2}, {half}, 0, T.ramp(0, 1, 4)]" for half in range(2))
            first = 2 * (pixel % 2)
            total = shuffle(halves, (first, first + 1, first + 4, first + 5))
        else:
            total = f"C[{pixel}, T.ramp(0, 1, 4)]"
        value = f"T.Cast('float32x4', {total} + S.vload([{lanes}], 'int32x4')) * F.vload([{lanes}], 'float32x4')"
        if has_offset:
            value += f" + G.vload([{lanes}], 'float32x4')"
        narrowed.append(call("sqxtn", "int16x4", call("fcvtns", "int32x4", value)))
    bytes_ = []
    for first in (0, 2):
        pair = shuffle(", ".join(narrowed[first : first + 2]), range(8))
        if affine.zero:
            pair = call("sqadd", "int16x8", pair, f"T.broadcast(T.int16({affine.zero}), 8)")
        bytes_.append(call("sqxtun", "uint8x8", pair))
    result = shuffle(", ".join(bytes_), range(16))
    ends = int(np.rint(low)) + affine.zero, int(np.rint(high)) + affine.zero
    if ends[0] > 0:
        result = f"T.max({result}, T.broadcast(T.uint8({ends[0]}), 16))"
    if ends[1] < LEVELS:
        result = f"T.min({result}, T.broadcast(T.uint8({ends[1]}), 16))"
    at = ", ".join("0" for _ in range(3 if unit == "usmmla" else 1))
    return f"D[{at}, T.ramp(0, 1, 16)] = {result}"
