"""Convolutions and products of bytes by ``vpmaddubsw``: four channels a step, half the instructions of widening.

``isa.pmaddubsw`` sees to it that nothing saturates. Panels of filters have their steps in an order of their own,
so a table says where each step's activations lie. Pairs of steps come first, added up in int16; then single ones. Of
either kind, some are xor-ed with a mask. All parts go on with the sums of the one before in the same registers.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import tvm_ffi
from tvm import relax, s_tir, te, tirx
from tvm.ir import Call, Range
from tvm.s_tir import SBlockRealize, Schedule
from tvm.s_tir.schedule import SBlockRV

from forge_pipeline.codegen.float32 import weight_decode
from forge_pipeline.codegen.float32.conv.direct import RESIDENT
from forge_pipeline.codegen.float32.conv.geometry import Geometry, pad_image
from forge_pipeline.codegen.int8.isa import pmaddubsw as isa
from forge_pipeline.codegen.int8.isa.dot_product import products
from forge_pipeline.codegen.int8.isa.pmaddubsw import K_INNER, Panels, Parts
from forge_pipeline.codegen.int8.isa.table import instruction_set
from forge_pipeline.codegen.int8.register_tile import COPY_CYCLES, STEPS
from forge_pipeline.codegen.int8.requantize import Epilogue, to_float_if_needed
from forge_pipeline.codegen.int8.x86 import narrow_store
from forge_pipeline.codegen.layout.affine import LEVELS, SUM_LIMIT
from forge_pipeline.codegen.layout.builder import Array, Graph, Value
from forge_pipeline.codegen.tir import primitives, rewriting
from forge_pipeline.codegen.tir.elementwise_blocks import schedule_elementwise
from forge_pipeline.codegen.tir.machine import Machine

NAME = "int8_pmaddubsw"
FIRST, SECOND, PLAIN, MASKED = "first", "second", "plain", "masked"
"""The blocks that sum begin like this: both steps of pairs, and single ones. `MASKED` ends those with masks."""
TILE = "forge.tile"
"""The annotation with pixels and vectors of a tile of sums."""

WORTH = 0.92
"""Part of the cycles of widening that this may take: masks take room, and are read besides."""
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
    copied = 0 if any(geometry.padding) else blocks * geometry.size[0] * geometry.size[1]  # else they are anyway
    pixels, vectors = isa.choose_tile(
        graph.machine, geometry.output[1], filters, len(steps[0]), copying=COPY_CYCLES * copied / geometry.output[0]
    )
    out_h, out_w = _padded_size(_with_whole_tiles(geometry, pixels))
    at = np.unravel_index(np.arange(steps.shape[1]), (blocks, height, width, lanes // K_INNER))
    block, kernel_h, kernel_w, k_outer = at
    place = ((block * out_h + kernel_h * geometry.dilation[0]) * out_w + kernel_w * geometry.dilation[1]) * lanes
    panels = isa.pack(steps, vectors * lanes)
    if panels is None or panels.parts.cycles > panels.parts.widened_cycles * WORTH:
        return None
    return graph.kernel(
        convolve, graph.blocked(source), *_constants(graph, panels, place + k_outer * K_INNER, epilogue, blocked=True),
        name="conv2d_u8", geometry=geometry, zero=zero, epilogue=epilogue, pixels=pixels,
        parts=panels.parts,
    )  # fmt: skip


def emit_product(graph: Graph, left: relax.Expr, rows: Any, weight: Array, epilogue: Epilogue) -> relax.Expr | None:
    """Emit (.., rows, steps), with ones before, times (steps, columns); None where this does not serve it."""
    steps, columns = weight.shape
    if not isinstance(rows, int) or rows < FEWEST or steps % K_INNER or not _serves(graph.machine, weight.T):
        return None
    pixels, vectors = isa.choose_tile(graph.machine, rows, columns, steps // K_INNER, even=True, apart=steps)
    panels = isa.pack(weight.T.reshape(columns, -1, K_INNER), vectors * graph.machine.lanes)
    if panels is None or panels.parts.cycles > panels.parts.widened_cycles * WORTH:
        return None
    place = K_INNER * np.arange(steps // K_INNER)
    return graph.kernel(
        by_rows, left, *_constants(graph, panels, place, epilogue, blocked=False),
        name="dense_u8", columns=columns, epilogue=epilogue, pixels=pixels, parts=panels.parts,
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
    if panels.parts.masks:
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
    geometry: Geometry, zero: int, epilogue: Epilogue, pixels: int, parts: Parts,
) -> te.Tensor:  # fmt: skip
    """Describe the convolution of blocked bytes with packed weights, and what is done to its sums.

    ``places`` count from a pixel's first byte, beyond its block: memory is one row of bytes.
    """
    masks, constants = _split(rest, parts)
    padded = pad_image(image, _with_whole_tiles(geometry, pixels), zero)
    lanes, (stride_h, stride_w), (out_h, width) = int(image.shape[-1]), geometry.strides, geometry.output
    rows = int(weight.shape[0]) * int(weight.shape[2]) // lanes
    total = _sums(
        lambda n, h, w, place: padded(n, 0, h * stride_h, w * stride_w, place),
        (weight, places, masks), parts, (image.shape[0], rows, out_h, -(-width // pixels) * pixels, lanes), pixels,
    )  # fmt: skip
    return narrow_store.requantize(
        (image.shape[0], -(-geometry.filters // lanes), out_h, width, lanes),
        epilogue,
        total,
        lambda _n, oc_block, _h, _w, out: (term(oc_block, out) for term in constants),
    )


def by_rows(
    left: te.Tensor, weight: te.Tensor, places: te.Tensor, *rest: te.Tensor,
    columns: int, epilogue: Epilogue, pixels: int, parts: Parts, lanes: int,
) -> te.Tensor:  # fmt: skip
    """Describe (.., rows, steps), with ones before, times packed weights, and what is done to the sums."""
    masks, constants = _split(rest, parts)
    first, rows = (0,) * (len(left.shape) - 2), int(left.shape[-2])
    vectors = int(weight.shape[0]) * int(weight.shape[2]) // lanes
    total = _sums(
        lambda _n, _h, w, place: left(*first, w, place),
        (weight, places, masks), parts, (1, vectors, 1, rows, lanes), pixels,
    )  # fmt: skip

    def element(*at: Any) -> Any:
        m, n = at[-2:]
        return epilogue.result(total(0, n // lanes, 0, m, n % lanes), *(term(n) for term in constants))

    return te.compute((*left.shape[:-1], columns), element, name=f"finish_{to_float_if_needed(epilogue.affine)}")


def _split(rest: tuple[te.Tensor, ...], parts: Parts) -> tuple[te.Tensor | None, tuple[te.Tensor, ...]]:
    return (rest[0], rest[1:]) if parts.masks else (None, rest)


def _sums(
    read: Callable[..., Any], packed: tuple[te.Tensor, te.Tensor, te.Tensor | None], parts: Parts,
    shape: tuple[Any, ...], pixels: int,
) -> te.Tensor:  # fmt: skip
    """Describe the sums of (n, row, h, w, lane), part by part of the steps."""
    weight, places, masks = packed
    lanes, vectors = shape[-1], int(weight.shape[2]) // shape[-1]

    def part(name: str, first: int, count: int, apart: int = 1, mask: int | None = None) -> te.Tensor:
        step, k_inner = te.reduce_axis((0, count), "step"), te.reduce_axis((0, K_INNER), "k_inner")

        def element(n: Any, oc_block: Any, h: Any, w: Any, out: Any) -> Any:
            panel, column = oc_block // vectors, oc_block % vectors * lanes + out
            number = first + apart * step
            value = read(n, h, w, places(panel, number).astype("int64") + k_inner)
            if masks is not None and mask is not None:
                value = value ^ masks(panel, mask + step, column, k_inner)
            return te.sum(products(value, weight(panel, number, column, k_inner)), axis=[step, k_inner])

        return te.compute(shape, element, name=name if mask is None else f"{name}_{MASKED}")

    found, begin = [], 2 * parts.pairs
    if parts.pairs:
        found += [part(FIRST, 0, parts.pairs, 2), part(SECOND, 1, parts.pairs, 2)]
    if parts.masked_pairs:
        found += [part(FIRST, begin, parts.masked_pairs, 2), part(SECOND, begin + 1, parts.masked_pairs, 2, 0)]
    begin += 2 * parts.masked_pairs
    if parts.single:
        found.append(part(PLAIN, begin, parts.single))
    if parts.masked:
        found.append(part(PLAIN, begin + parts.single, parts.masked, mask=parts.masked_pairs))

    def total(*at: Any) -> Any:
        return functools.reduce(operator.add, (tensor(*at) for tensor in found))

    return te.compute(shape, total, name="total", attrs={primitives.FAMILY: NAME, TILE: [pixels, vectors]})


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
        schedule_elementwise(sch, block, machine)
    n, oc, h, w, out = sch.get_loops(anchor)
    oc_blocks, height, width = (primitives.static(sch, loop) for loop in (oc, h, w))
    counts = [primitives.static(sch, sch.get_loops(block)[-2]) for block in parts]
    steps = sum(counts)
    masks = sum(count for block, count in zip(parts, counts, strict=True) if _is_masked(sch, block))
    weight_bytes = oc_blocks * lanes * (steps + masks) * K_INNER
    weights_first = weight_bytes > min(max(steps * K_INNER * height * width, machine.l2), RESIDENT)
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
    sch.tensorize(out, isa.intrinsic(lanes, masked=_is_masked(sch, block)))


def _is_masked(sch: Schedule, block: SBlockRV) -> bool:
    """Return whether a block sums what masks change."""
    return MASKED in str(sch.get(block).name_hint)


def continue_sums(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel whose parts of sums go on in the same registers, pairs of steps in one loop.

    One that plain loops serve, where each sum starts for itself, stays as it is.
    """
    realizes = rewriting.realizes(function.body)
    anchor = next((realize.block for realize in realizes if _adds(realize.block)), None)
    sums = [] if anchor is None else [load.source for load in _terms(anchor.body.value)]
    if not sums or not all(any(_starts(realize.block, buffer) for realize in realizes) for buffer in sums):
        return function
    before = dict(zip(sums[1:], sums, strict=False))
    seconds = {buffer: before[buffer] for buffer in sums if buffer.name.startswith(SECOND)}
    before = {buffer: seconds.get(source, source) for buffer, source in before.items() if buffer not in seconds}
    last = seconds.get(sums[-1], sums[-1])
    updates = {
        realize.block.writes[0].source: realize.block
        for realize in realizes
        if realize.block.match_buffers and realize.block.writes[0].source in sums
    }

    def change(realize: SBlockRealize) -> SBlockRealize:
        block = realize.block
        written = block.writes[0].source
        second = next((other for other, first in seconds.items() if first.same_as(written)), None)
        if _adds(block):
            return _with_content(realize, tirx.BufferLoad(last, _terms(block.body.value)[0].indices))
        if written in before and _starts(block, written):
            return _with_content(realize, tirx.BufferLoad(before[written], block.body.indices))
        if second is not None and block.match_buffers:
            return s_tir.SBlockRealize(realize.iter_values, realize.predicate, _paired(block, updates[second]))
        return realize

    def drop(loop: tirx.For, mutator: Any) -> Any:
        inside = rewriting.realizes(loop)
        if inside and all(realize.block.writes[0].source in seconds for realize in inside):
            return tirx.Evaluate(0)
        return mutator.default_mutate(loop)

    body = tvm_ffi.structural_mutate(function.body, [(tirx.For, drop)]) if seconds else function.body
    return function.with_body(rewriting.map_realizes(body, change))


def _with_content(realize: SBlockRealize, value: Any) -> SBlockRealize:
    """Return a block that stores ``value``, a number of another buffer."""
    block = realize.block
    region = tirx.BufferRegion(value.source, [Range.from_min_extent(index, 1) for index in value.indices])
    body = tirx.BufferStore(block.body.buffer, value, block.body.indices)
    fresh = s_tir.SBlock(block.iter_vars, [region], block.writes, block.name_hint, body)
    return s_tir.SBlockRealize(realize.iter_values, realize.predicate, fresh)


def _paired(first: Any, second: Any) -> Any:
    """Return a block that adds the products of both to the sums of ``first``, in int16 before they are widened."""
    axes = {old.var: new.var for old, new in zip(second.iter_vars, first.iter_vars, strict=True)}

    def moved(tree: Any) -> Any:
        return rewriting.substitute(tree, axes.get)

    own = [match for match in second.match_buffers if not match.source.source.same_as(second.writes[0].source)]
    (products_of_second,) = _int16(second.body)

    def both(call: Call, mutator: Any) -> Any:
        return call + products_of_second if _is_int16(call) else mutator.default_mutate(call)

    body = tvm_ffi.structural_mutate(first.body, [(Call, both)])
    reads = [*first.reads, *(moved(region) for region in second.reads[1:])]
    matches = [*first.match_buffers, *(moved(match) for match in own)]
    return s_tir.SBlock(
        first.iter_vars, reads, first.writes, first.name_hint, body, match_buffers=matches,
        annotations=first.annotations,
    )  # fmt: skip


def _int16(body: Any) -> list[Call]:
    found: list[Call] = []
    tvm_ffi.structural_walk(body, [(Call, lambda call: found.append(call) if _is_int16(call) else None)])
    return found


def _is_int16(call: Call) -> bool:
    """Return whether a call is of the instruction that makes two products an int16: of a step, only that has such."""
    return str(call.ty.dtype).startswith("int16x")


def _terms(value: Any) -> list[Any]:
    """Return what is added up."""
    return [*_terms(value.a), value.b] if isinstance(value, tirx.Add) else [value]


def _starts(block: Any, sums: Any) -> bool:
    """Return whether a block does nothing but set ``sums`` to zero."""
    store = block.body
    return (
        isinstance(store, tirx.BufferStore)
        and bool(store.buffer.same_as(sums))
        and isinstance(store.value, tirx.IntImm)
    )


def _adds(block: Any) -> bool:
    """Return whether a block adds up the parts of the steps."""
    return str(block.annotations.get(primitives.FAMILY, "")) == NAME
