"""Results of integer kernels stored several pixels at a time: an x86 narrows four vectors of them in three steps.

One vector of int32 after the other takes a clip from below, one from above and four instructions to become bytes. Two
and two are packed with saturation, which clips them to the type's range as it goes, and the lanes that end up between
others are put in order once for all four. Rounding is the conversion's own, half to even, so what it is given must fit
int32: ``Epilogue.bounded`` proves that from the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tvm_ffi
from tvm import s_tir, te, tirx
from tvm.ir import Call, Range
from tvm.s_tir import SBlockRealize, Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from forge_pipeline.codegen.int8.requantize import Epilogue, to_float_if_needed
from forge_pipeline.codegen.layout.affine import LEVELS, Affine, Clip, stored
from forge_pipeline.codegen.tir import primitives, rewriting

LANES, ZERO, LOW, HIGH = primitives.PACKED, "forge.zero", "forge.low", "forge.high"
"""Annotations of a block that stores bytes: lanes of a vector, zero point, and the least and largest byte."""

REAL = "real"
"""The name of the block with results before they are rounded."""

PACKS, WHOLE = "forge.packs", "forge.whole"
"""Annotations of a block whose kernel's schedule stores packed bytes, and of one behind it, fused, that may be packed
but has results before they are rounded in its own expression: the lanes, zero point and bounds of `packing`."""

TOGETHER = (4, 2, 1)
"""Pixels that are stored at once."""

CONVERT = {4: "llvm.x86.sse2.cvtps2dq", 8: "llvm.x86.avx.cvt.ps2dq.256", 16: "llvm.x86.avx512.mask.cvtps2dq.512"}
TO_INT16 = {4: "llvm.x86.sse2.packssdw.128", 8: "llvm.x86.avx2.packssdw", 16: "llvm.x86.avx512.packssdw.512"}
TO_UINT8 = {4: "llvm.x86.sse2.packuswb.128", 8: "llvm.x86.avx2.packuswb", 16: "llvm.x86.avx512.packuswb.512"}


def requantize(
    shape: Sequence[Any],
    epilogue: Epilogue,
    total: Callable[..., Any],
    constants: Callable[..., Iterable[Any]],
    *,
    family: str | None = None,
) -> te.Tensor:
    """Describe what becomes of ``total(*at)``: ``constants(*at)`` are its bias, its factor, and perhaps an offset.

    ``family`` schedules the block that stores it, where none before it says so, and all that is fused behind it.
    """
    name, affine = f"finish_{to_float_if_needed(epilogue.affine)}", epilogue.affine
    attributes: dict[str, Any] = {PACKS: 1} if family is None else {primitives.FAMILY: family}
    if affine is None or not epilogue.bounded:
        return te.compute(shape, lambda *at: epilogue.result(total(*at), *constants(*at)), name=name, attrs=attributes)
    real = te.compute(shape, lambda *at: epilogue.real(total(*at), *constants(*at)), name=REAL)
    attributes |= packing(affine, epilogue.clip, int(shape[-1]))
    return te.compute(shape, lambda *at: stored(real(*at), affine, epilogue.clip), name=name, attrs=attributes)


def packing(affine: Affine, clip: Clip, lanes: int) -> dict[str, int]:
    """Return the annotations of a block that packs what a block before it, read whole, has in steps of ``affine``."""
    low, high = (int(end) + affine.zero for end in clip.codes(affine))
    return {LANES: lanes, ZERO: affine.zero, LOW: low, HIGH: high}


def packing_later(affine: Affine, clip: Clip, lanes: int) -> dict[str, list[int]]:
    """Return the annotation of a block that could be packed if a kernel that packs had it behind (``part_whole``)."""
    return {WHOLE: [*packing(affine, clip, lanes).values()]}


def part_whole(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel whose last block may be packed with its results before they are rounded in a block before it."""
    *others, realize = rewriting.realizes(function.body) or [None]
    if realize is None or WHOLE not in realize.block.annotations:
        return function
    if not any(PACKS in other.block.annotations for other in others):
        return function
    block, root, store = realize.block, function.body.block, realize.block.body
    lanes, zero, low, high = map(int, block.annotations[WHOLE])
    notes = {LANES: lanes, ZERO: zero, LOW: low, HIGH: high}
    real = tirx.decl_buffer(store.buffer.ty.shape, "float32", REAL)
    results = tirx.BufferRegion(real, block.writes[0].region)
    steps, clip = Affine(scale=1.0, zero=zero), Clip(low=low - zero, high=high - zero)
    value = stored(tirx.BufferLoad(real, store.indices), steps, clip)
    exact = tirx.BufferStore(real, _unrounded(store.value), store.indices)
    parts = (
        s_tir.SBlock(block.iter_vars, block.reads, [results], REAL, exact),
        s_tir.SBlock(
            block.iter_vars, [results], block.writes, block.name_hint,
            tirx.BufferStore(store.buffer, value, store.indices), annotations=notes,
        ),
    )  # fmt: skip
    *nests, last = root.body.seq

    def nest_of(part: Any) -> Any:
        nest = rewriting.map_realizes(last, lambda old: SBlockRealize(old.iter_values, old.predicate, part))
        return rewriting.with_own_axes(rewriting.clone(nest))

    body = tirx.SeqStmt([*nests, *map(nest_of, parts)])
    inner = s_tir.SBlock([], [], [], root.name_hint, body, alloc_buffers=[*root.alloc_buffers, real])
    return function.with_body(SBlockRealize([], True, inner))


def _unrounded(value: Any) -> Any:
    """Return what an expression of ``stored`` clips, rounds and moves."""
    while not isinstance(value, tirx.Max):
        value = value.args[0] if isinstance(value, Call) else value.a if isinstance(value, tirx.Add) else value.value
    return value.a.a


def is_packed(sch: Schedule, last: SBlockRV) -> bool:
    """Return whether a kernel's last block is one to be packed, and nothing was fused behind it."""
    return LANES in sch.get(last).annotations


def compute_at(sch: Schedule, last: SBlockRV, tile: LoopRV) -> list[SBlockRV]:
    """Store a tile of results when it is computed. Return the blocks that do, all to be made vectors."""
    if not is_packed(sch, last):
        sch.reverse_compute_at(last, tile)
        return [last]
    (real,) = sch.get_producers(last)
    sch.reverse_compute_at(real, tile)
    sch.set_scope(real, 0, "local")
    sch.reverse_compute_at(last, tile)
    return [real, last]


def pack_stores(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel that stores bytes of neighbouring pixels together where a block asks for it."""

    def pack(loop: tirx.For, mutator: Any) -> Any:
        realize = _match_store(loop)
        return mutator.default_mutate(loop) if realize is None else _pack_stores(loop, realize)

    return function.with_body(tvm_ffi.structural_mutate(function.body, [(tirx.For, pack)]))


def _match_store(loop: tirx.For) -> SBlockRealize | None:
    """Return the block in a loop over pixels whose only content is a loop over lanes with one to be packed."""
    inner = loop.body
    if not isinstance(inner, tirx.For) or inner.kind != tirx.ForKind.VECTORIZED:
        return None
    realize = inner.body
    if not isinstance(realize, s_tir.SBlockRealize) or LANES not in realize.block.annotations:
        return None
    if int(inner.extent) != int(realize.block.annotations[LANES]):
        return None
    *_, pixel, lane = realize.iter_values
    starts_with = rewriting.reads(pixel, loop.loop_var) and lane.same_as(inner.loop_var)
    return realize if starts_with and isinstance(loop.extent, tirx.IntImm) else None


def _pack_stores(loop: tirx.For, realize: SBlockRealize) -> Any:
    """Return the stores of all pixels of a loop, as many together as there are."""
    lane, extent, first, parts = loop.body.loop_var, int(loop.extent), 0, []
    conditions = rewriting.conjuncts(realize.predicate)

    def at(tree: Any, pixel: int) -> Any:
        chosen = {loop.loop_var: pixel, lane: 0}
        return rewriting.substitute(tree, lambda seen: next((n for v, n in chosen.items() if seen.same_as(v)), None))

    while first < extent:
        count = next(size for size in TOGETHER if size <= extent - first)
        values = [at(value, first) for value in realize.iter_values]
        together: Any = s_tir.SBlockRealize(values, True, _block(realize.block, count))
        if conditions:
            one_by_one = [_alone(loop, realize, first + index) for index in range(count)]
            whole = tirx.all(*(at(condition, first + count - 1) for condition in conditions))
            together = tirx.IfThenElse(whole, together, tirx.SeqStmt(one_by_one) if count > 1 else None)
        parts.append(together)
        first += count
    return tirx.SeqStmt(parts) if len(parts) > 1 else parts[0]


def _alone(loop: tirx.For, realize: SBlockRealize, pixel: int) -> Any:
    """Return the store of one pixel under its own condition."""

    def at(tree: Any) -> Any:
        return rewriting.substitute(
            tree, lambda seen: pixel if seen.same_as(loop.loop_var) else 0 if seen.same_as(loop.body.loop_var) else None
        )

    values = [at(value) for value in realize.iter_values]
    store = s_tir.SBlockRealize(values, True, _block(realize.block, 1))
    return tirx.IfThenElse(tirx.all(*(at(item) for item in rewriting.conjuncts(realize.predicate))), store, None)


def _block(block: Any, count: int) -> Any:
    """Return a block that stores ``count`` pixels, from the one of its axes on."""
    store, notes = block.body, block.annotations
    lanes, zero = int(notes[LANES]), int(notes[ZERO])
    (read,) = (region for region in block.reads)
    source, target = read.source, store.buffer
    loads = rewriting.loads(store.value)
    from_ = next(load for load in loads if load.source.same_as(source))
    fresh = {axis.var: tirx.Var(axis.var.name, axis.var.ty.dtype) for axis in block.iter_vars}
    axes = [tirx.IterVar(axis.dom, fresh[axis.var], axis.iter_type) for axis in block.iter_vars]
    read_at, stored_at = ([rewriting.substitute(index, fresh.get) for index in of.indices] for of in (from_, store))

    def place(indices: list[Any], offset: int, width: int) -> list[Any]:
        *outer, pixel, lane = indices
        first = tirx.const(0, lane.ty.dtype)
        return [*outer, pixel + offset if offset else pixel, tirx.Ramp(first, tirx.const(1, lane.ty.dtype), width)]

    floats = [tirx.BufferLoad(source, place(read_at, offset, lanes)) for offset in range(count)]
    value = narrow(floats, lanes, zero, int(notes[LOW]), int(notes[HIGH]))

    def region(buffer: Any, indices: list[Any]) -> Any:
        *outer, pixel, lane = indices
        ranges = [Range.from_min_extent(index, 1) for index in outer]
        ranges += [Range.from_min_extent(pixel, count), Range.from_min_extent(tirx.const(0, lane.ty.dtype), lanes)]
        return tirx.BufferRegion(buffer, ranges)

    body = tirx.BufferStore(target, value, place(stored_at, 0, lanes * count))
    return s_tir.SBlock(axes, [region(source, read_at)], [region(target, stored_at)], block.name_hint, body)


def narrow(floats: Sequence[Any], lanes: int, zero: int, low: int, high: int) -> Any:
    """Return one, two or four vectors of float32, rounded, moved to ``zero`` and clipped, as bytes in order."""
    int16 = f"int16x{2 * lanes}"
    integers = [_convert(value, lanes) for value in floats]
    pairs = [integers[:2], integers[2:]] if len(integers) == 4 else [integers]
    halves = []
    for pair in pairs:
        half = tirx.call_llvm_pure_intrin(int16, TO_INT16[lanes], pair[0], pair[-1])
        if zero:
            half = tirx.call_llvm_pure_intrin(int16, "llvm.sadd.sat", half, tirx.const(zero, int16))
        halves.append(half)
    narrow = tirx.call_llvm_pure_intrin(f"uint8x{4 * lanes}", TO_UINT8[lanes], halves[0], halves[-1])
    if low > 0:
        narrow = tirx.max(narrow, tirx.const(low, f"uint8x{4 * lanes}"))
    if high < LEVELS:
        narrow = tirx.min(narrow, tirx.const(high, f"uint8x{4 * lanes}"))
    order = group_order(lanes, len(floats))
    if order == list(range(lanes)):
        return narrow
    integers_in_order = tirx.Shuffle([tirx.reinterpret(f"int32x{lanes}", narrow)], order)
    return tirx.reinterpret(f"uint8x{lanes * len(floats)}", integers_in_order)


def group_order(lanes: int, vectors: int) -> list[int]:
    """Return which groups of four bytes, of what packing makes of one, two or four ``vectors``, come first, second ...

    Instructions pack 128 bits of their operands each: every 16 bytes hold four of each vector, or of two, or one again.
    """
    quarters = lanes // 4
    return [4 * quarter + vector for vector in range(vectors) for quarter in range(quarters)]


def _convert(value: Any, lanes: int) -> Any:
    kind = f"int32x{lanes}"
    if lanes < 16:
        return tirx.call_llvm_pure_intrin(kind, CONVERT[lanes], value)
    rest, all_, rounding = tirx.const(0, kind), tirx.const(-1, "int16"), tirx.const(4, "int32")
    return tirx.call_llvm_pure_intrin(kind, CONVERT[lanes], value, rest, all_, rounding)
