"""Convolutions and products of bytes by ``vpmaddubsw``: four channels a step, half the instructions of widening.

``isa.pmaddubsw`` sees to it that nothing saturates. Panels of filters have their steps in an order of their own,
so a table says where each step's activations lie. Steps of the second part are xor-ed with a mask, and go on with the
sums of the first part in the same registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax, s_tir, te, tirx
from tvm.ir import Range
from tvm.s_tir import SBlockRealize, Schedule
from tvm.s_tir.schedule import SBlockRV

from forge_pipeline.codegen.float32 import weight_decode
from forge_pipeline.codegen.float32.conv_geometry import Geometry, pad_image
from forge_pipeline.codegen.float32.direct import RESIDENT
from forge_pipeline.codegen.int8.isa import pmaddubsw as isa
from forge_pipeline.codegen.int8.isa.dot_product import products
from forge_pipeline.codegen.int8.isa.pmaddubsw import K_INNER, Panels
from forge_pipeline.codegen.int8.isa.table import instruction_set
from forge_pipeline.codegen.int8.register_tile import STEPS
from forge_pipeline.codegen.int8.requantize import Epilogue, to_float_if_needed
from forge_pipeline.codegen.int8.x86 import narrow_store
from forge_pipeline.codegen.layout.affine import LEVELS, SUM_LIMIT
from forge_pipeline.codegen.layout.builder import Array, Graph, Value
from forge_pipeline.codegen.tir import primitives, rewriting
from forge_pipeline.codegen.tir.machine import Machine

NAME = "int8_pmaddubsw"
PLAIN, COMPLEMENTED = "sums", "complemented"
"""The blocks that sum: activations as they are, and those that a mask changes."""
TILE = "forge.tile"
"""The annotation with pixels and vectors of a tile of sums."""

MOST_COMPLEMENTED = 0.5
"""Share of steps with masks above which widening is faster, whole layers measured; masks take room besides."""
FEWEST = 4
"""Rows of a matrix below which its weights are read too seldom for their masks to pay."""


def emit(
    graph: Graph, source: Value, zero: int, weight: Array, geometry: Geometry, epilogue: Epilogue
) -> relax.Expr | None:
    """Emit a convolution of one group; the result is blocked. None where this does not serve it."""
    lanes = graph.machine.lanes
    if geometry.groups != 1 or geometry.channels < lanes or not geometry.is_static:
        return None
    if not _serves(graph.machine, weight):
        return None
    filters, channels, height, width = weight.shape
    blocks = -(-channels // lanes)
    full = np.zeros((filters, blocks * lanes, height, width), np.int8)
    full[:, :channels] = weight
    split = full.reshape(filters, blocks, lanes // K_INNER, K_INNER, height, width)
    steps = split.transpose(0, 1, 4, 5, 2, 3).reshape(filters, -1, K_INNER)
    pixels, vectors = isa.choose_tile(graph.machine, geometry.output[1], filters, len(steps[0]))
    out_h, out_w = _padded_size(_with_whole_tiles(geometry, pixels))
    at = np.unravel_index(np.arange(steps.shape[1]), (blocks, height, width, lanes // K_INNER))
    block, kernel_h, kernel_w, k_outer = at
    place = ((block * out_h + kernel_h * geometry.dilation[0]) * out_w + kernel_w * geometry.dilation[1]) * lanes
    panels = isa.pack(steps, vectors * lanes)
    if panels is None or panels.complemented > MOST_COMPLEMENTED * steps.shape[1]:
        return None
    return graph.kernel(
        convolve, graph.blocked(source), *_constants(graph, panels, place + k_outer * K_INNER, epilogue, blocked=True),
        name="conv2d_u8", geometry=geometry, zero=zero, epilogue=epilogue, pixels=pixels,
        complemented=panels.complemented,
    )  # fmt: skip


def emit_product(graph: Graph, left: relax.Expr, rows: Any, weight: Array, epilogue: Epilogue) -> relax.Expr | None:
    """Emit (.., rows, steps), with ones before, times (steps, columns); None where this does not serve it."""
    steps, columns = weight.shape
    if not isinstance(rows, int) or rows < FEWEST or steps % K_INNER or not _serves(graph.machine, weight.T):
        return None
    pixels, vectors = isa.choose_tile(graph.machine, rows, columns, steps // K_INNER, even=True)
    panels = isa.pack(weight.T.reshape(columns, -1, K_INNER), vectors * graph.machine.lanes)
    if panels is None or panels.complemented > MOST_COMPLEMENTED * (steps // K_INNER):
        return None
    place = K_INNER * np.arange(steps // K_INNER)
    return graph.kernel(
        by_rows, left, *_constants(graph, panels, place, epilogue, blocked=False),
        name="dense_u8", columns=columns, epilogue=epilogue, pixels=pixels, complemented=panels.complemented,
        lanes=graph.machine.lanes,
    )  # fmt: skip


def _serves(machine: Machine, weight: Array) -> bool:
    """Return whether weights of (filters, ...) are int8, their sums have room in int32, and the target widens."""
    if not instruction_set(machine).saturating_pairs or weight.dtype != np.int8:
        return False
    totals = np.abs(weight.astype(np.int64)).reshape(len(weight), -1).sum(axis=1)
    return LEVELS * int(totals.max(initial=0)) < SUM_LIMIT


def _constants(graph: Graph, panels: Panels, place: Array, epilogue: Epilogue, *, blocked: bool) -> list[relax.Expr]:
    """Return weights, where steps lie, masks if there are any, and what ``epilogue`` needs."""
    size, lanes = panels.weights.shape[0] * panels.weights.shape[2], graph.machine.lanes
    packed = [graph.constant(panels.weights), graph.constant(place[panels.order].astype(np.int32))]
    if panels.complemented:
        bits = np.packbits(panels.masks.reshape(*panels.masks.shape[:2], -1) != 0, axis=-1, bitorder="little")
        packed.append(graph.kernel(weight_decode.unpack_masks, graph.constant(bits), name="complement_masks"))
    started = replace(epilogue, bias=epilogue.bias + panels.bias)
    return [*packed, *started.constants(graph, (size // lanes, lanes) if blocked else (size,))]


def _with_whole_tiles(geometry: Geometry, pixels: int) -> Geometry:
    """Return a convolution that reads what whole tiles of ``pixels`` need, more padding to the right."""
    return geometry.padded_for(-(-geometry.output[1] // pixels) * pixels)


def _padded_size(geometry: Geometry) -> tuple[int, int]:
    top, left, bottom, right = geometry.padding
    return geometry.size[0] + top + bottom, geometry.size[1] + left + right


def convolve(
    image: te.Tensor, weight: te.Tensor, places: te.Tensor, *rest: te.Tensor,
    geometry: Geometry, zero: int, epilogue: Epilogue, pixels: int, complemented: int,
) -> te.Tensor:  # fmt: skip
    """Describe the convolution of blocked bytes with packed weights, and what is done to its sums.

    ``places`` count from a pixel's first byte, beyond its block: memory is one row of bytes.
    """
    masks, constants = _split(rest, complemented)
    padded = pad_image(image, _with_whole_tiles(geometry, pixels), zero)
    lanes, (stride_h, stride_w), (out_h, width) = int(image.shape[-1]), geometry.strides, geometry.output
    rows = int(weight.shape[0]) * int(weight.shape[2]) // lanes
    total = _sums(
        lambda n, h, w, place: padded(n, 0, h * stride_h, w * stride_w, place),
        (weight, places, masks), (image.shape[0], rows, out_h, -(-width // pixels) * pixels, lanes), pixels,
    )  # fmt: skip
    return narrow_store.requantize(
        (image.shape[0], -(-geometry.filters // lanes), out_h, width, lanes),
        epilogue,
        total,
        lambda _n, oc_block, _h, _w, out: (term(oc_block, out) for term in constants),
    )


def by_rows(
    left: te.Tensor, weight: te.Tensor, places: te.Tensor, *rest: te.Tensor,
    columns: int, epilogue: Epilogue, pixels: int, complemented: int, lanes: int,
) -> te.Tensor:  # fmt: skip
    """Describe (.., rows, steps), with ones before, times packed weights, and what is done to the sums."""
    masks, constants = _split(rest, complemented)
    first, rows = (0,) * (len(left.shape) - 2), int(left.shape[-2])
    vectors = int(weight.shape[0]) * int(weight.shape[2]) // lanes
    total = _sums(
        lambda _n, _h, w, place: left(*first, w, place),
        (weight, places, masks), (1, vectors, 1, rows, lanes), pixels,
    )  # fmt: skip

    def element(*at: Any) -> Any:
        m, n = at[-2:]
        return epilogue.result(total(0, n // lanes, 0, m, n % lanes), *(term(n) for term in constants))

    return te.compute((*left.shape[:-1], columns), element, name=f"finish_{to_float_if_needed(epilogue.affine)}")


def _split(rest: tuple[te.Tensor, ...], complemented: int) -> tuple[te.Tensor | None, tuple[te.Tensor, ...]]:
    return (rest[0], rest[1:]) if complemented else (None, rest)


def _sums(
    read: Callable[..., Any], packed: tuple[te.Tensor, te.Tensor, te.Tensor | None], shape: tuple[Any, ...], pixels: int
) -> te.Tensor:
    """Describe the sums of (n, row, h, w, lane): of steps as they are, and of those that a mask changes."""
    weight, places, masks = packed
    lanes, vectors = shape[-1], int(weight.shape[2]) // shape[-1]
    masked = 0 if masks is None else int(masks.shape[1])
    plain = int(weight.shape[1]) - masked

    def part(name: str, first: int, count: int) -> te.Tensor:
        step, k_inner = te.reduce_axis((0, count), "step"), te.reduce_axis((0, K_INNER), "k_inner")

        def element(n: Any, oc_block: Any, h: Any, w: Any, out: Any) -> Any:
            panel, column = oc_block // vectors, oc_block % vectors * lanes + out
            value = read(n, h, w, places(panel, first + step).astype("int64") + k_inner)
            if name == COMPLEMENTED and masks is not None:
                value = value ^ masks(panel, step, column, k_inner)
            return te.sum(products(value, weight(panel, first + step, column, k_inner)), axis=[step, k_inner])

        return te.compute(shape, element, name=name)

    parts = [part(PLAIN, 0, plain)] if plain else []
    parts += [part(COMPLEMENTED, plain, masked)] if masked else []

    def both(*at: Any) -> Any:
        return parts[0](*at) + parts[1](*at) if len(parts) > 1 else parts[0](*at)

    return te.compute(shape, both, name="total", attrs={primitives.FAMILY: NAME, TILE: [pixels, vectors]})


def schedule(sch: Schedule, machine: Machine) -> None:
    """Hold a tile of sums in registers along both parts of its steps; then what follows, then store."""
    anchor, lanes = primitives.find(sch, NAME), machine.lanes
    pixels, vectors = (int(extent) for extent in sch.get(anchor).annotations[TILE])
    ancestors, last = primitives.split_around(sch, anchor)
    parts = [block for block in ancestors if primitives.is_reduction(sch, block)]
    before = [block for block in ancestors if not primitives.is_reduction(sch, block)]
    for block in before[:-1]:
        sch.compute_inline(block)
    for block in before[-1:]:
        primitives.schedule_elementwise(sch, block, machine)
    n, oc, h, w, out = sch.get_loops(anchor)
    oc_blocks, height, width = (primitives.static(sch, loop) for loop in (oc, h, w))
    steps = sum(primitives.static(sch, sch.get_loops(block)[-2]) for block in parts)
    weights_first = oc_blocks * lanes * steps * K_INNER > min(steps * K_INNER * height * width, RESIDENT)
    oc_out, oc_in = sch.split(oc, [None, vectors])
    w_out, w_in = sch.split(w, [None, pixels])
    shared_loops, inner = [n, h], [w_out, oc_out]
    if weights_first:
        shared_loops, inner = [n, oc_out, h], [w_out]
    if height == 1:  # a matrix: its rows are shared out as well
        shared_loops, inner = [n, h, *([oc_out, w_out] if weights_first else [w_out, oc_out])], []
    sch.reorder(*shared_loops, *inner, w_in, oc_in, out)
    shared = primitives.fuse(sch, shared_loops)
    tile, depth = (inner[-1] if inner else shared), 1 + len(inner)
    stores = narrow_store.compute_at(sch, last, tile)
    for block in parts:
        sch.set_scope(block, 0, "local")
        sch.compute_at(block, tile, preserve_unit_loops=True)
    primitives.parallel_if_worth(sch, shared, oc_blocks * lanes * height * width * steps // STEPS)
    for block in [anchor, *stores]:
        primitives.vectorize_and_unroll(sch, block, below=depth, lanes=lanes)
    for block in parts:
        _multiply(sch, block, depth, lanes)


def _multiply(sch: Schedule, block: SBlockRV, depth: int, lanes: int) -> None:
    """Compute a part of the steps of a tile with instructions."""
    vector, one, pixel, out, step, k_inner = sch.get_loops(block)[-6:]
    sch.reorder(one, step, pixel, vector, out, k_inner)
    sch.unroll(pixel)
    sch.unroll(vector)
    primitives.vectorize_and_unroll(sch, sch.decompose_reduction(block, step), below=depth, lanes=lanes)
    reads = [str(region.source.ty.dtype) for region in sch.get(block).reads]
    sch.unsafe_hide_buffer_access(block, "read", [reads.index("int32", 1)])  # the table: where to read, not what
    sch.tensorize(out, isa.intrinsic(lanes, masked=sch.get(block).name_hint.startswith(COMPLEMENTED)))


def continue_sums(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel whose second sum starts where the first ends, in the same registers.

    One that plain loops serve, where each sum starts for itself, stays as it is.
    """
    realizes = rewriting.realizes(function.body)
    anchors = [realize.block for realize in realizes if _adds(realize.block)]
    if not anchors:
        return function
    added = anchors[0].body.value
    first, second = added.a.source, added.b.source
    if not any(_starts(realize.block, second) for realize in realizes):
        return function

    def change(realize: SBlockRealize) -> SBlockRealize:
        block = realize.block
        store = block.body
        if _adds(block):
            value = tirx.BufferLoad(second, added.b.indices)
        elif _starts(block, second):
            value = tirx.BufferLoad(first, store.indices)
        else:
            return realize
        region = tirx.BufferRegion(value.source, [Range.from_min_extent(index, 1) for index in value.indices])
        body = tirx.BufferStore(store.buffer, value, store.indices)
        fresh = s_tir.SBlock(block.iter_vars, [region], block.writes, block.name_hint, body)
        return s_tir.SBlockRealize(realize.iter_values, realize.predicate, fresh)

    return function.with_body(rewriting.map_realizes(function.body, change))


def _starts(block: Any, sums: Any) -> bool:
    """Return whether a block does nothing but set ``sums`` to zero."""
    store = block.body
    return (
        isinstance(store, tirx.BufferStore)
        and bool(store.buffer.same_as(sums))
        and isinstance(store.value, tirx.IntImm)
    )


def _adds(block: Any) -> bool:
    """Return whether a block adds up the two parts of the steps."""
    return str(block.annotations.get(primitives.FAMILY, "")) == NAME and isinstance(block.body.value, tirx.Add)
