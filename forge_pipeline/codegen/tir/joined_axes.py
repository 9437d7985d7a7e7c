"""Axes that lie together, in the same order, in all that a copy reads and writes: they are one axis to it.

Where axes are exchanged, tiles of registers are cut along the last axis of what is read and of what is written. An
image of 7 x 7 pixels has no tile of 16 along its width, but along its pixels; pairs of numbers have none at all. The
tensors keep their shapes: the last of the joined axes goes over all of their numbers, the others stay at zero, and
what is read is found by its address, as the only place along the tensor's last axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Range, TensorLoad, Var
from tvm.sym import Analyzer, detect_linear_equation

from forge_pipeline.codegen.tir import primitives, rewriting


def join(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return an elementwise kernel with such axes as one, where it reads along another axis than it writes."""
    sch = s_tir.Schedule(function)
    for block in primitives.blocks(sch)[:-1]:
        sch.compute_inline(block)
    inlined = sch.mod["main"]
    realizes = rewriting.realizes(inlined.body)
    if len(realizes) != 1 or not isinstance(realizes[0].block.body, tirx.BufferStore):
        return function
    (realize,) = realizes
    store, axes = realize.block.body, list(realize.block.iter_vars)
    loads = rewriting.loads(store.value)
    if not loads or [place for place, axis in zip(store.indices, axes, strict=False) if not place.same_as(axis.var)]:
        return function
    accesses = [(store.indices, store.buffer), *((load.indices, load.source) for load in loads)]
    steps = [found for places, buffer in accesses if (found := steps_of(places, buffer, axes)) is not None]
    if len(steps) < len(accesses) or all(along(found) is None for found in steps):
        return function
    extents = [axis.dom.extent for axis in axes]
    joined = [
        all(_is_one_axis(found[number], found[number + 1], extents[number + 1]) for found in steps)
        for number in range(len(axes) - 1)
    ]
    if not any(joined) or _uses(store.value, axes) != sum(_uses(load.indices, axes) for load in loads):
        return function
    for number, is_joined in enumerate(joined):
        if is_joined:
            extents[number : number + 2] = [tirx.const(1, "int64"), extents[number] * extents[number + 1]]
    body = rewriting.map_realizes(inlined.body, lambda old: _by_address(old, axes))
    return inlined.with_body(rewriting.with_axes(body, dict(zip(realize.iter_values, extents, strict=True))))


def _by_address(realize: Any, axes: Sequence[Any]) -> Any:
    """Return a block that finds what it reads by its address, which goes on behind the end of an axis."""

    def change(load: Any) -> Any:
        if not _uses(load.indices, axes):
            return load
        first = [tirx.const(0, "int64")] * (len(load.indices) - 1)
        return tirx.BufferLoad(load.source, [*first, _address(load.indices, load.source, axes)])

    old = realize.block
    content = tvm_ffi.structural_map(old.body, [(TensorLoad, change)])
    reads = [
        tirx.BufferRegion(load.source, [Range.from_min_extent(place, 1) for place in load.indices])
        for load in rewriting.loads(content)
    ]
    block = s_tir.SBlock(old.iter_vars, reads, old.writes, old.name_hint, content, annotations=old.annotations)
    return s_tir.SBlockRealize(realize.iter_values, realize.predicate, block)


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
    return next((number for number, step in enumerate(others) if _is(step, 1)), None) if crosses(last) else None


def crosses(step: Any) -> bool:
    """Return whether neighbours that lie this far apart are two, and not side by side."""
    return not (_is(step, 0) or _is(step, 1))


def _is_one_axis(step: Any, next_step: Any, extent: Any) -> bool:
    """Return whether a step on the first of two axes is a row of the second, which is as long as ``extent`` says."""
    return bool(Analyzer().can_prove_equal(step, next_step * extent))


def _is(step: Any, number: int) -> bool:
    return isinstance(step, tirx.IntImm) and int(step) == number


def _uses(tree: Any, axes: Sequence[Any]) -> int:
    found: list[Any] = []
    tvm_ffi.structural_walk(tree, [(Var, found.append)])
    return sum(seen.same_as(axis.var) for seen in found for axis in axes)
