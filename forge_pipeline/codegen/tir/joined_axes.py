"""Axes that lie together, in the same order, in all that a copy reads and writes: they are one axis to it.

Where axes are exchanged, tiles of registers are cut along the last axis of what is read and of what is written. An
image of 7 x 7 pixels has no tile of 16 along its width, but along its pixels; pairs of numbers have none at all. The
tensors keep their shapes: the last of the joined axes goes over all of their numbers, the others stay at zero, and
what is read is found by its address, as the only place along the tensor's last axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Range, TensorLoad, Var
from tvm.sym import Analyzer, detect_linear_equation

from forge_pipeline.codegen.tir import primitives, rewriting
from forge_pipeline.codegen.tir.broadcasting import is_one


def join(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return an elementwise kernel as one block, with axes joined where it reads along another axis than it writes.

    What is cheap to repeat is inlined into what reads it. Axes of one number at the end are left out: the one before is
    last.
    """
    sch = s_tir.Schedule(function)
    for block in primitives.blocks(sch)[:-1]:
        sch.compute_inline(block)
    kernel = inlined = sch.mod["main"]
    realize = _only_store(kernel)
    while realize is not None and len(realize.block.iter_vars) > 1 and is_one(realize.block.iter_vars[-1].dom.extent):
        kernel = _without(kernel, realize, len(realize.block.iter_vars) - 1)
        realize = _only_store(kernel)
    return inlined if realize is None else _joined(kernel, realize) or inlined


def _joined(kernel: tirx.PrimFunc, realize: Any) -> tirx.PrimFunc | None:
    """Return a kernel of one store with joined axes; None where it exchanges none."""
    store, axes = realize.block.body, list(realize.block.iter_vars)
    loads = rewriting.loads(store.value)
    accesses = [(store.indices, store.buffer), *((load.indices, load.source) for load in loads)]
    steps = [found for places, buffer in accesses if (found := steps_of(places, buffer, axes)) is not None]
    if len(steps) < len(accesses) or all(along(found) is None for found in steps):
        return None
    extents = [axis.dom.extent for axis in axes]
    joined = [
        all(_is_one_axis(found[number], found[number + 1], extents[number + 1]) for found in steps)
        for number in range(len(axes) - 1)
    ]
    if not any(joined) or _uses(store.value, axes) != sum(_uses(load.indices, axes) for load in loads):
        return kernel
    for number, is_joined in enumerate(joined):
        if is_joined:
            extents[number : number + 2] = [tirx.const(1, "int64"), extents[number] * extents[number + 1]]
    body = rewriting.map_realizes(kernel.body, lambda old: _by_address(old, axes))
    return kernel.with_body(rewriting.with_axes(body, dict(zip(realize.iter_values, extents, strict=True))))


def _only_store(kernel: tirx.PrimFunc) -> Any | None:
    """Return a kernel's block, if it is one that stores a number."""
    realizes = rewriting.realizes(kernel.body)
    return realizes[0] if len(realizes) == 1 and isinstance(realizes[0].block.body, tirx.BufferStore) else None


def of_one(function: tirx.PrimFunc) -> Iterator[tuple[Any, tirx.PrimFunc]]:
    """Yield what may be one, and a kernel for that: an open batch that changes places with a last axis.

    What has the batch last then has the axis before it last, along which tiles are cut.
    """
    realize = _only_store(function)
    if realize is None:
        return
    store, axes = realize.block.body, list(realize.block.iter_vars)
    for load in rewriting.loads(store.value):
        steps = steps_of(load.indices, load.source, axes)
        at = None if steps is None else along(steps)
        if at is None:
            continue
        for number, buffer in ((at, store.buffer), (len(axes) - 1, load.source)):
            batch = buffer.ty.shape[0]
            if isinstance(batch, Var) and axes[number].dom.extent.same_as(batch):
                yield batch, _without(function, realize, number)
        return


def _without(function: tirx.PrimFunc, realize: Any, number: int) -> tirx.PrimFunc:
    """Return a kernel without an axis of its block, whose extent is one wherever else it occurs."""
    axes = list(realize.block.iter_vars)
    extent = axes[number].dom.extent
    known = {axes[number].var: 0} | ({extent: 1} if isinstance(extent, Var) else {})
    found = _by_address(realize, axes, known).block
    own = [
        tirx.IterVar((0, rewriting.substitute(axis.dom.extent, known.get)), axis.var, axis.iter_type)
        for axis in axes[:number] + axes[number + 1 :]
    ]
    turns = [tirx.Var(axis.var.name, axis.var.ty.dtype) for axis in own]
    block = s_tir.SBlock(own, found.reads, found.writes, found.name_hint, found.body, annotations=found.annotations)
    body: Any = s_tir.SBlockRealize(turns, True, block)
    for turn, axis in reversed(list(zip(turns, own, strict=True))):
        body = tirx.For(turn, 0, axis.dom.extent, tirx.ForKind.SERIAL, body)
    return function.with_body(s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body)))


def _by_address(realize: Any, axes: Sequence[Any], known: Mapping[Any, int] = MappingProxyType({})) -> Any:
    """Return a block that finds all by address, which goes on behind the end of an axis; with ``known`` variables."""

    def placed(places: Any, buffer: Any) -> list[Any]:
        if not _uses(places, axes):
            return list(places)
        place = rewriting.substitute(_address(places, buffer, axes), known.get)
        return [*[tirx.const(0, "int64")] * (len(places) - 1), Analyzer().simplify(place)]

    def change(load: Any) -> Any:
        return tirx.BufferLoad(load.source, placed(load.indices, load.source))

    old = realize.block
    content = rewriting.substitute(tvm_ffi.structural_map(old.body.value, [(TensorLoad, change)]), known.get)
    store = tirx.BufferStore(old.body.buffer, content, placed(old.body.indices, old.body.buffer))
    reads = _regions((load.source, load.indices) for load in rewriting.loads(content))
    writes = _regions([(store.buffer, store.indices)])
    block = s_tir.SBlock(old.iter_vars, reads, writes, old.name_hint, store, annotations=old.annotations)
    return s_tir.SBlockRealize(realize.iter_values, realize.predicate, block)


def _regions(accesses: Iterable[tuple[Any, Any]]) -> list[Any]:
    """Return the numbers that are at these places of these buffers."""
    return [
        tirx.BufferRegion(buffer, [Range.from_min_extent(place, 1) for place in places]) for buffer, places in accesses
    ]


def _address(places: Any, buffer: Any, axes: Sequence[Any]) -> Any:
    analyzer = Analyzer()
    for axis in axes:
        analyzer.bind(axis.var, axis.dom)
    return rewriting.address([analyzer.simplify(place) for place in places], buffer)


def steps_of(places: Any, buffer: Any, axes: Sequence[Any]) -> list[Any] | None:
    """Return how far apart neighbours on each axis lie in a buffer, and where the first is; None where that varies."""
    linear = detect_linear_equation(_address(places, buffer, axes), [axis.var for axis in axes])
    return list(linear) or None


def along(steps: Sequence[Any]) -> int | None:
    """Return the axis on which neighbours lie side by side in a buffer, where those on the last one lie apart."""
    *others, last, _ = steps
    return next((number for number, step in enumerate(others) if is_one(step)), None) if crosses(last) else None


def crosses(step: Any) -> bool:
    """Return whether neighbours that lie this far apart are two, and not side by side."""
    return not (isinstance(step, tirx.IntImm) and int(step) in (0, 1))


def _is_one_axis(step: Any, next_step: Any, extent: Any) -> bool:
    """Return whether a step on the first of two axes is a row of the second, which is as long as ``extent`` says."""
    return bool(Analyzer().can_prove_equal(step, next_step * extent))


def _uses(tree: Any, axes: Sequence[Any]) -> int:
    found: list[Any] = []
    tvm_ffi.structural_walk(tree, [(Var, found.append)])
    return sum(seen.same_as(axis.var) for seen in found for axis in axes)
