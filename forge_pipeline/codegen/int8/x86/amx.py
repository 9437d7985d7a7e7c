"""Products of bytes in AMX's tiles: convolutions as products of patches, and matrix products.

A tile register holds 16 rows of 64 bytes. One instruction adds to 16 by 16 sums the products of 16 rows of 64
activations by 64 steps of 16 filters (Intel's architecture manual, TDPBUSD). Four tiles of sums share two of each, so
that every load serves two products. Sums pass through memory once, where all that follows a product is applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from forge_pipeline.codegen.float32.conv_geometry import Geometry, surround
from forge_pipeline.codegen.int8.dot_product import products, register
from forge_pipeline.codegen.int8.requantize import Finish, to_float_if_needed
from forge_pipeline.codegen.layout.builder import Array, Graph, Value
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine

if TYPE_CHECKING:
    from tvm import relax, te
    from tvm.s_tir import Schedule

NAME = "integer_amx"
ROWS, BYTES, LANES, GROUP = 16, 64, 16, 4
"""A tile: rows, bytes of a row, int32 sums of a row, steps that one sum takes at once."""
QUADS = BYTES // GROUP
PATCHES = "patches"
IMAGE = 5
"""Axes of a blocked image."""
WORTH = 0.5
"""The least part of a tile's arithmetic that must be wanted: below, vectors do no worse."""


def emit(
    graph: Graph, source: Value, zero: int, weight: Array, geometry: Geometry, finish: Finish
) -> relax.Expr | None:
    """Emit a convolution of one group as the product of its patches; the result is blocked."""
    lanes = graph.machine.lanes
    if not graph.machine.amx or lanes != LANES or geometry.groups != 1 or geometry.channels < lanes:
        return None
    if not geometry.is_sized:
        return None
    filters, channels, height, width = weight.shape
    blocks = -(-channels // lanes)
    full = np.zeros((filters, blocks * lanes, height, width), np.int8)
    full[:, :channels] = weight
    steps = full.transpose(2, 3, 1, 0).reshape(-1, filters)
    rows = geometry.output[0] * geometry.output[1]
    if not is_worth(rows, channels * height * width, filters):
        return None
    return graph.kernel(
        convolve, graph.blocked(source), graph.constant(pack_weight(steps)),
        *finish.constants(graph, _columns(filters)),
        name="conv2d_u8", geometry=geometry, zero=zero, finish=finish, high=_tiles(rows), filters=filters,
    )  # fmt: skip


def emit_product(graph: Graph, flat: relax.Expr, rows: Any, weight: Array, finish: Finish) -> relax.Expr | None:
    """Emit (rows, steps) times (steps, columns); None where vectors serve as well."""
    steps, columns = weight.shape
    if not graph.machine.amx or not isinstance(rows, int) or not is_worth(rows, steps, columns):
        return None
    return graph.kernel(
        by_tiles, flat, graph.constant(pack_weight(weight)),
        *finish.constants(graph, _columns(columns)),
        name="dense_u8", columns=columns, finish=finish, high=_tiles(rows),
    )  # fmt: skip


def is_worth(rows: int, steps: int, columns: int) -> bool:
    """Return whether enough of the tiles is filled."""
    wide = _tiles(columns)
    filled = rows * steps * columns
    tiles = _whole(rows, ROWS * _tiles(rows)) * _whole(steps, BYTES) * _whole(columns, LANES * wide)
    return filled >= WORTH * tiles


def _tiles(extent: int) -> int:
    """Return how many tiles side by side cover ``extent``, two at most."""
    return 1 if extent <= ROWS else 2


def _whole(extent: int, unit: int) -> int:
    return -(-extent // unit) * unit


def _columns(count: int) -> tuple[int]:
    """Return the form of one number for each column of whole tiles."""
    return (_whole(count, LANES * _tiles(count)),)


def pack_weight(weight: Array) -> Array:
    """Return (steps, columns) as (columns / width, steps / 64, tiles side by side, 16, 16, 4), filled up with zeros."""
    steps, columns = weight.shape
    wide = _tiles(columns)
    full = np.zeros((_whole(steps, BYTES), _whole(columns, LANES * wide)), np.int8)
    full[:steps, :columns] = weight
    split = full.reshape(full.shape[0] // BYTES, QUADS, GROUP, -1, wide, LANES)
    return np.ascontiguousarray(split.transpose(3, 0, 4, 1, 5, 2))


def by_tiles(
    left: te.Tensor, panels: te.Tensor, bias: te.Tensor, factor: te.Tensor, *offset: te.Tensor,
    columns: int, finish: Finish, high: int,
) -> te.Tensor:  # fmt: skip
    """Describe (rows, steps) times packed weights, and what is done to the sums."""
    from tvm import te, tirx

    rows, steps = (int(extent) for extent in left.shape)
    chunks = int(panels.shape[1])

    def patch(_: Any, chunk: Any, m: Any, k: Any) -> Any:
        step = chunk * BYTES + k
        inside = [condition for condition, needed in (
            (m < rows, rows % (ROWS * high) != 0), (step < steps, steps % BYTES != 0),
        ) if needed]  # fmt: skip
        value = left(m, step)
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, "uint8")) if inside else value

    patches = te.compute((1, chunks, _whole(rows, ROWS * high), BYTES), patch, name=PATCHES)
    total = _sums(patches, panels)
    width = LANES * int(panels.shape[2])

    def finished(m: Any, n: Any) -> Any:
        value = total(0, n // width, m, n % width // LANES, n % LANES)
        return finish.result(value, bias(n), factor(n), *(term(n) for term in offset))

    return te.compute((rows, columns), finished, name=f"finish_{to_float_if_needed(finish.affine)}")


def convolve(
    image: te.Tensor, panels: te.Tensor, bias: te.Tensor, factor: te.Tensor, *offset: te.Tensor,
    geometry: Geometry, zero: int, finish: Finish, high: int, filters: int,
) -> te.Tensor:  # fmt: skip
    """Describe the convolution of blocked bytes with packed weights, and what is done to its sums."""
    from tvm import te, tirx

    batch, blocks, _, _, lanes = image.shape
    blocks, lanes, chunks = int(blocks), int(lanes), int(panels.shape[1])
    padded = surround(image, geometry, zero)
    height, width = geometry.output
    taps = geometry.kernel[0] * geometry.kernel[1]
    (down, right), (dilate_down, dilate_right) = geometry.strides, geometry.dilation

    def patch(n: Any, chunk: Any, m: Any, k: Any) -> Any:
        part = chunk * (BYTES // lanes) + k // lanes  # weights of parts beyond the last are zero
        if chunks * BYTES != taps * blocks * lanes:
            part = tirx.min(part, taps * blocks - 1)
        pixel = tirx.min(m, height * width - 1) if height * width % (ROWS * high) else m
        tap, block = part // blocks, part % blocks
        y = pixel // width * down + tap // geometry.kernel[1] * dilate_down
        x = pixel % width * right + tap % geometry.kernel[1] * dilate_right
        return padded(n, block, y, x, k % lanes)

    patches = te.compute((batch, chunks, _whole(height * width, ROWS * high), BYTES), patch, name=PATCHES)
    total = _sums(patches, panels)
    wide = int(panels.shape[2])

    def finished(n: Any, row: Any, h: Any, w: Any, lane: Any) -> Any:
        out = row * lanes + lane
        value = total(n, row // wide, h * width + w, row % wide, lane)
        return finish.result(value, bias(out), factor(out), *(term(out) for term in offset))

    shape = (batch, -(-filters // lanes), height, width, lanes)
    return te.compute(shape, finished, name=f"finish_{to_float_if_needed(finish.affine)}")


def _sums(patches: te.Tensor, panels: te.Tensor) -> te.Tensor:
    from tvm import te

    batch, chunks, tall, _ = patches.shape
    count, _, wide, *_ = (int(extent) for extent in panels.shape)
    chunk, quad = te.reduce_axis((0, int(chunks)), "chunk"), te.reduce_axis((0, QUADS), "quad")
    byte = te.reduce_axis((0, GROUP), "byte")

    def sums(n: Any, panel: Any, m: Any, v: Any, column: Any) -> Any:
        activation = patches(n, chunk, m, quad * GROUP + byte)
        return te.sum(products(activation, panels(panel, chunk, v, quad, column, byte)), axis=[chunk, quad, byte])

    return te.compute((batch, count, tall, wide, LANES), sums, name="sums", attrs={primitives.FAMILY: NAME})


def schedule(sch: Schedule, machine: Machine) -> None:
    """Compute a few tiles along all steps, then what follows from memory; patches of some rows serve all filters."""
    anchor = primitives.find(sch, NAME)
    before, last = primitives.split_around(sch, anchor)
    n, panel, m, v, column, chunk, quad, byte = sch.get_loops(anchor)
    panels, tall, wide, chunks = (primitives.static(sch, loop) for loop in (panel, m, v, chunk))
    high = 2 if tall % (2 * ROWS) == 0 else 1
    m_out, m_in = sch.split(m, [None, ROWS * high])
    inside = [chunk, m_in, v] if wide > 1 else [v, chunk, m_in]
    sch.reorder(n, m_out, panel, *inside, column, quad, byte)
    rows_only = tall // (ROWS * high) >= 2 * machine.cores or panels == 1
    if len(sch.get_loops(last)) == IMAGE:
        columns = primitives.static(sch, sch.get_loops(last)[3])
        sch.transform_block_layout(last, lambda n, row, h, w, lane: (n, row, h * columns + w, lane))
    shared = primitives.fuse(sch, [n, m_out] if rows_only else [n, m_out, panel])
    sch.reverse_compute_at(last, panel if rows_only else shared)
    for block in before:
        if rows_only and sch.get(block).name_hint == PATCHES:
            sch.compute_at(block, shared)
            sch.vectorize(sch.split(sch.get_loops(block)[-1], [None, machine.lanes])[1])
        else:
            primitives.spread(sch, block, machine)
    primitives.parallel_if_worth(sch, shared, panels * tall * wide * chunks * BYTES * LANES)
    _vectorize(sch, last, machine.lanes)
    zeros = sch.decompose_reduction(anchor, chunk)
    sch.vectorize(sch.get_loops(zeros)[-1])
    sch.tensorize(chunk if chunks > 1 else m_in, _intrinsic(chunks, high, wide))


def _vectorize(sch: Schedule, block: Any, lanes: int) -> None:
    loop = sch.get_loops(block)[-1]
    length = primitives.extent(sch, loop)
    if length is not None and length % lanes == 0:
        sch.vectorize(sch.split(loop, [None, lanes])[1] if length > lanes else loop)


_FRAME = """
@T.prim_func(s_tir=True)
def tiles(a: T.handle, b: T.handle, c: T.handle) -> None:
    apart = T.int32()
    A = T.match_buffer(a, ({chunks}, {rows}, 64), 'uint8', offset_factor=1, strides=[apart, 64, 1])
    B = T.match_buffer(b, ({chunks}, {wide}, 16, 16, 4), 'int8', offset_factor=1)
    C = T.match_buffer(c, ({rows}, {wide}, 16), 'int32', offset_factor=1, scope='local')
    with T.sblock('root'):
        T.reads(C[0:{rows}, 0:{wide}, 0:16], A[0:{chunks}, 0:{rows}, 0:64], B[0:{chunks}, 0:{wide}, 0:16, 0:16, 0:4])
        T.writes(C[0:{rows}, 0:{wide}, 0:16])
        {body}
"""
_SUM = "C[{i}, {v}, {j}]"
_PRODUCT = "T.Cast('int32', A[{t}, {i}, {q} * 4 + {k}]) * T.Cast('int32', B[{t}, {v}, {q}, {j}, {k}])"

CONFIGURATION = (1, 0, 0x0040004000400040, 0x0040004000400040, 0, 0, 0x1010101010101010, 0)
"""The 64 bytes that LDTILECFG reads, as words: the first palette; eight tiles of 64 bytes in each of 16 rows."""


def _intrinsic(chunks: int, high: int, wide: int) -> str:
    """Return the name of the tensor intrinsic for ``high`` by ``wide`` tiles of sums, registered at first use."""
    words = {"chunks": chunks, "rows": ROWS * high, "wide": wide}
    name = f"forge.amx.{chunks}.{high}.{wide}"
    register(name, _FRAME, _meaning(chunks, high, wide), _body(chunks, high, wide), words)
    return name


def _meaning(chunks: int, high: int, wide: int) -> str:
    """Return the script; axes of one element are none, as TVM drops them from what it compares."""
    extents = {"t": chunks, "i": ROWS * high, "v": wide, "j": LANES, "q": QUADS, "k": GROUP}
    axes = {axis: f"v{axis}" if extent > 1 else "0" for axis, extent in extents.items()}
    names = [axis for axis, extent in extents.items() if extent > 1]
    bound = [axis for axis in "ivjtqk" if axis in names]
    kinds = "".join("S" if axis in "ivj" else "R" for axis in bound)
    total = _SUM.format(**axes)
    return f"""for {", ".join(names)} in T.grid({", ".join(str(extents[axis]) for axis in names)}):
            with T.sblock('update'):
                {", ".join(axes[axis] for axis in bound)} = T.axis.remap('{kinds}', [{", ".join(bound)}])
                {total} = {total} + {_PRODUCT.format(**axes)}"""


def _body(chunks: int, high: int, wide: int) -> str:
    """Return the script: tiles 0 to 3 are sums, 4 and 5 rows of activations, 6 and 7 columns of weights."""
    rows = ROWS * high
    sums = [(row, column) for row in range(high) for column in range(wide)]
    everything = f"A[0:{chunks}, 0:{rows}, 0:64], B[0:{chunks}, 0:{wide}, 0:16, 0:16, 0:4]"
    lines = [f"T.reads(C[0:{rows}, 0:{wide}, 0:16], {everything})", f"T.writes(C[0:{rows}, 0:{wide}, 0:16])"]
    lines += ["W = T.sblock_alloc_buffer((8,), 'int64', scope='local')"]
    lines += [f"W[{at}] = T.int64({word})" for at, word in enumerate(CONFIGURATION)]
    lines += [_call("ldtilecfg", "T.address_of(W[0])")]
    stride = f"T.int64({wide * LANES * 4})"
    place = [f"T.address_of(C[{row * ROWS}, {column}, 0])" for row, column in sums]
    lines += [_call("tileloadd64", f"T.uint8({tile})", at, stride) for tile, at in enumerate(place)]
    lines += [f"for t in T.serial({chunks}):"]
    inner = [_load(4 + row, f"A[t, {row * ROWS}, 0]") for row in range(high)]
    inner += [_load(6 + column, f"B[t, {column}, 0, 0, 0]") for column in range(wide)]
    inner += [
        _call("tdpbusd", f"T.uint8({tile})", f"T.uint8({4 + row})", f"T.uint8({6 + column})")
        for tile, (row, column) in enumerate(sums)
    ]
    lines += ["    " + line for line in inner]
    lines += [_call("tilestored64", f"T.uint8({tile})", at, stride) for tile, at in enumerate(place)]
    lines += [_call("tilerelease")]
    return "with T.sblock('tiles'):\n            " + "\n            ".join(lines)


def _load(tile: int, at: str) -> str:
    return _call("tileloadd64", f"T.uint8({tile})", f"T.address_of({at})", "T.int64(64)")


def _call(instruction: str, *arguments: str) -> str:
    given = ", ".join(["'void'", f"'llvm.x86.{instruction}'", *arguments])
    return f"T.evaluate(T.call_llvm_intrin({given}))"
