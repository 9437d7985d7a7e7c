"""Copies of activations that micro-kernels read: rows with a margin, two blocks side by side, rows of a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.int8.isa.instruction import extents_of, register, shuffle, whole
from forge_pipeline.codegen.int8.isa.micro_kernel import LANES, PIXELS
from forge_pipeline.codegen.int8.neon.tile import Plan
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.elementwise_blocks import schedule_elementwise
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.codegen.tir.peel_padding import EDGES

COPY = "forge.copy"
"""The annotation of a copy: ``rows``, ``matrix``, or the form of what is copied in halves."""


def matrix(left: te.Tensor, plan: Plan) -> te.Tensor:
    """Describe a copy of (.., rows, steps) as an image of one row: (1, steps / 4, 1, rows, 4), or with halves.

    What comes before rows is of extent one.
    """
    *ones, rows, steps = (int(extent) for extent in left.shape)
    micro, first = plan.kernel, (0,) * len(ones)
    padded_rows = -(-rows // plan.pixels) * plan.pixels

    def element(_: Any, block: Any, __: Any, m: Any, *channel: Any) -> Any:
        at = block * micro.k_inner + (channel[0] * LANES + channel[1] if len(channel) > 1 else channel[0])
        row = tirx.min(m, rows - 1) if padded_rows != rows else m
        return _to_signed(left(*first, row, tirx.min(at, steps - 1) if steps % micro.k_inner else at), micro.signed)

    inner = (2, LANES) if micro.reads_halves else (LANES,)
    shape = (1, -(-steps // micro.k_inner), 1, padded_rows, *inner)
    return te.compute(shape, element, name="matrix", attrs={COPY: "matrix"})


def _to_signed(byte: Any, signed: bool) -> Any:
    return (byte.astype("int32") - 128).astype("int8") if signed else byte


def pad_rows(image: te.Tensor, geometry: Geometry, zero: int, plan: Plan) -> te.Tensor:
    """Describe a copy (N, blocks, H, W * 4) with the padding, and with pixels that only fill the last tile."""
    micro, (top, left, bottom, right) = plan.kernel, geometry.padding
    out_w = -(-geometry.output[1] // plan.pixels) * plan.pixels
    blocks, height, width = (int(extent) for extent in image.shape[1:4])
    whole = max(width + left + right, geometry.input_width(out_w))
    whole, even = -(-whole // PIXELS) * PIXELS, -(-blocks * LANES // micro.k_inner) * micro.k_inner // LANES
    first, last = left * LANES, (left + width) * LANES
    filler = tirx.const(zero - 128, "int8") if micro.signed else tirx.const(zero, "uint8")

    def element(n: Any, block: Any, h: Any, at: Any) -> Any:
        conditions = [h >= top] if top else []
        conditions += [h < height + top] if bottom else []
        conditions += [at >= first] if left else []
        conditions += [at < last] if last != whole * LANES else []
        from_block = tirx.min(block, blocks - 1) if even != blocks else block
        byte = image(n, from_block, h - top, (at - first) // LANES, (at - first) % LANES)
        pixel = _to_signed(byte, micro.signed)
        return tirx.if_then_else(tirx.all(*conditions), pixel, filler) if conditions else pixel

    attributes: dict[str, Any] = {COPY: "rows"}
    if any((top, left, bottom, last != whole * LANES)):
        attributes |= {primitives.FAMILY: primitives.PAD, EDGES: 3}
    return te.compute(
        (image.shape[0], even, height + top + bottom, whole * LANES), element, name="row", attrs=attributes
    )


def halves(source: te.Tensor, layout: str) -> te.Tensor:
    """Describe a copy (N, blocks / 2, H, W, 2, 4) of an image, or of its rows."""
    blocks, height, width = (int(extent) for extent in source.shape[1:4])

    def element(n: Any, block: Any, h: Any, w: Any, half: Any, channel: Any) -> Any:
        at = (w * LANES + channel,) if layout == "row" else (w, channel)
        return source(n, block * 2 + half, h, *at)

    columns = width // LANES if layout == "row" else width
    shape = (source.shape[0], blocks // 2, height, columns, 2, LANES)
    return te.compute(shape, element, name="halves", attrs={COPY: layout})


def schedule_copy(sch: Schedule, block: SBlockRV, machine: Machine) -> None:
    """Copy rows by threads: what is contiguous in a row is LLVM's to vectorize, what is not goes by int32."""
    kind = str(sch.get(block).annotations.get(COPY, ""))
    if not kind:
        schedule_elementwise(sch, block, machine)
        return
    loops = sch.get_loops(block)
    work = primitives.product(primitives.extents(sch, block))
    if kind == "matrix":
        n, k_block, h, m, *inner = loops
        sch.reorder(n, h, m, k_block, *inner)
        sch.vectorize(primitives.fuse(sch, inner))
        primitives.parallel_if_worth(sch, sch.fuse(n, h, m), work)
        return
    if kind in _PAIRS:
        sch.tensorize(sch.split(loops[3], [None, PIXELS])[1], _zip(kind))
    primitives.parallel_if_worth(sch, primitives.fuse(sch, loops[:3]), work)


_PAIRS: Mapping[str, tuple[tuple[int, ...], str, str]] = {
    "row": ((2, 1, 16), "strides=[blocks, rows, 1]", "A[vh, 0, vp * 4 + vc]"),
    "image": ((2, 1, 4, 4), "strides=[blocks, rows, 4, 1]", "A[vh, 0, vp, vc]"),
}
"""Four pixels of two blocks, by the form of the image: shape, strides, and a byte of them."""

_FRAME = """
@T.prim_func(s_tir=True)
def pair(a: T.handle, b: T.handle) -> None:
    blocks = T.int32()
    rows = T.int32()
    A = T.match_buffer(a, {shape}, 'uint8', offset_factor=1, {strides})
    B = T.match_buffer(b, (4, 2, 4), 'uint8', offset_factor=1)
    with T.sblock('root'):
        T.reads(A[{read}])
        T.writes(B[0:4, 0:2, 0:4])
        {body}
"""


def _zip(form: str) -> str:
    """Return the name of the tensor intrinsic: two vectors loaded, their int32 interleaved, two vectors stored."""
    shape, strides, value = _PAIRS[form]
    axes = len(shape) - 1
    first, second = (f"A.vload([{half}{', 0' * axes}], 'uint8x16')" for half in range(2))
    lines = []
    for pixel in (0, 2):
        places = [16 * half + 4 * at + byte for at in (pixel, pixel + 1) for half in range(2) for byte in range(4)]
        lines.append(f"B[{pixel}, 0, T.ramp(0, 1, 16)] = {shuffle(f'{first}, {second}', places)}")
    pattern = f"""for p, h, c in T.grid(4, 2, 4):
            with T.sblock('copy'):
                vp, vh, vc = T.axis.remap('SSS', [p, h, c])
                B[vp, vh, vc] = {value}"""
    name = f"forge.neon.zip.{form}"
    params = {"shape": extents_of(shape), "strides": strides, "read": whole(shape)}
    register(name, _FRAME, pattern, "\n        ".join(lines), params)
    return name
