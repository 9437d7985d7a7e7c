"""From sums of a NEON micro-kernel to sixteen bytes, with instructions that round, narrow and saturate.

``Epilogue`` says what is computed; its results leave as one vector. FCVTNS rounds half to even, the narrowing
instructions keep what does not fit at the ends of their range, so that clipping to all of it takes none of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from forge_pipeline.codegen.int8.isa.instruction import call, extents_of, register, shuffle, whole
from forge_pipeline.codegen.int8.isa.micro_kernel import MicroKernel
from forge_pipeline.codegen.int8.requantize import Epilogue
from forge_pipeline.codegen.layout.affine import LEVELS, ROUNDS, Affine
from forge_pipeline.codegen.tir import primitives

STORE = "forge.store"
"""The annotation of the block that makes bytes of sums: its intrinsic."""


def name_of(kernel: MicroKernel, epilogue: Epilogue) -> str:
    """Return the name of the tensor intrinsic, registered when it is first asked for; the finish is quantized."""
    affine = epilogue.affine
    assert affine is not None  # noqa: S101 - who calls has looked
    low, high = epilogue.clip.codes(affine)
    has_float_bias = epilogue.float_bias is not None
    name = f"forge.neon.store.{kernel.name}.{affine.zero}.{low:g}.{high:g}.{has_float_bias}"
    pattern, body = (text(kernel, affine, low, high, has_float_bias=has_float_bias) for text in (_pattern, _body))
    register(name, _FRAME, pattern, body, _params(kernel, has_float_bias=has_float_bias))
    return name


def narrow(value: Callable[..., Any], shape: Sequence[Any], kernel: MicroKernel, epilogue: Epilogue) -> te.Tensor:
    """Describe the bytes of micro-kernels: ``shape`` of them, each with the axes of its pixels, then of its filters."""
    attributes = {STORE: name_of(kernel, epilogue)}
    return te.compute((*shape, *kernel.shape(kernel.pixel + kernel.lane)), value, name="narrow", attrs=attributes)


def find(sch: Schedule) -> SBlockRV | None:
    """Return the block that makes bytes of micro-kernels."""
    return next((block for block in primitives.blocks(sch) if STORE in sch.get(block).annotations), None)


def store(sch: Schedule, block: SBlockRV, depth: int, axes: int) -> None:
    """Compute the micro-kernels below loop ``depth``, with ``axes`` of their own, with NEON's instructions."""
    loops = sch.get_loops(block)
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


def _params(kernel: MicroKernel, *, has_float_bias: bool) -> dict[str, str]:
    found = {"more": "", "read": "", "offset": ""}
    for name, axes in (("sums", kernel.sums), ("lanes", kernel.lane), ("results", kernel.pixel + kernel.lane)):
        found[name], found[f"all_{name}"] = extents_of(kernel.shape(axes)), whole(kernel.shape(axes))
    if has_float_bias:
        found |= {"more": ", g: T.handle", "read": f", G[{found['all_lanes']}]"}
        found["offset"] = f"\n    G = T.match_buffer(g, {found['lanes']}, 'float32', offset_factor=1)"
    return found


def _pattern(kernel: MicroKernel, affine: Affine, low: float, high: float, *, has_float_bias: bool) -> str:
    results = kernel.pixel + kernel.lane
    total, lane, result = (", ".join(f"v{axis}" for axis in axes) for axes in (kernel.sums, kernel.lane, results))
    value = f"T.Cast('float32', C[{total}] + S[{lane}]) * F[{lane}]" + (f" + G[{lane}]" if has_float_bias else "")
    shifted = f"T.max(T.min({value}, T.float32({high!r})), T.float32({low!r})) + T.float32({ROUNDS!r})"
    moved = f"T.reinterpret({shifted}, dtype='int32')" + (f" + {affine.zero}" if affine.zero else "")
    return f"""for {", ".join(results)} in T.grid({", ".join(map(str, kernel.shape(results)))}):
            with T.sblock('narrow'):
                {result} = T.axis.remap('{"S" * len(results)}', [{", ".join(results)}])
                D[{result}] = T.Cast('uint8', {moved})"""


def _body(kernel: MicroKernel, affine: Affine, low: float, high: float, *, has_float_bias: bool) -> str:
    lanes = ", ".join("0" for _ in kernel.lane)
    narrowed = []
    for pixel in range(4):
        total = f"{kernel.sums_of(pixel)} + S.vload([{lanes}], 'int32x4')"
        value = f"T.Cast('float32x4', {total}) * F.vload([{lanes}], 'float32x4')"
        if has_float_bias:
            value += f" + G.vload([{lanes}], 'float32x4')"
        narrowed.append(_neon("sqxtn", "int16x4", _neon("fcvtns", "int32x4", value)))
    bytes_ = []
    for first in (0, 2):
        pair = shuffle(", ".join(narrowed[first : first + 2]), range(8))
        if affine.zero:
            pair = _neon("sqadd", "int16x8", pair, f"T.broadcast(T.int16({affine.zero}), 8)")
        bytes_.append(_neon("sqxtun", "uint8x8", pair))
    result = shuffle(", ".join(bytes_), range(16))
    ends = int(np.rint(low)) + affine.zero, int(np.rint(high)) + affine.zero
    if ends[0] > 0:
        result = f"T.max({result}, T.broadcast(T.uint8({ends[0]}), 16))"
    if ends[1] < LEVELS:
        result = f"T.min({result}, T.broadcast(T.uint8({ends[1]}), 16))"
    at = ", ".join("0" for _ in kernel.sums[1:])
    return f"D[{at}, T.ramp(0, 1, 16)] = {result}"


def _neon(instruction: str, dtype: str, *arguments: str) -> str:
    return call(f"llvm.aarch64.neon.{instruction}", dtype, *arguments)
