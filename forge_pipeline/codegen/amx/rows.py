"""Rows of a product, as many as a model says or a call brings: the latter in groups, whose size is a number.

A group's rows are multiplied as those of any matrix are. The last one computes as many tiles as it has rows for, and
stores what there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Range, TensorLoad
from tvm.s_tir import SBlockRealize, Schedule

from forge_pipeline.codegen.amx.operands import filled
from forge_pipeline.codegen.amx.tiles import LANES, ROWS
from forge_pipeline.codegen.tir import primitives, rewriting

GROUP: Final = "forge.amx_group"
"""The annotation of sums of any number of rows: how many a group has; and of a loop over its tiles: that, and how many
rows a tile has."""
FEW: Final = "forge.amx_few"
"""The attribute of a kernel that is scheduled for few rows."""
FEWEST: Final = 6
"""Rows from which on tiles take less time than vectors (measured)."""
IMAGE: Final = "forge.amx_image"
"""The annotation of both where rows are an image's pixels."""
BLOCKED: Final = 5
"""Axes of an image in blocks."""
LINES: Final = "lines"
"""The name of the copy that tiles read."""
TILE: Final = 2 * ROWS
"""Rows that two tiles take."""
ROOM: Final = 1 << 19
MOST: Final = 512
"""Bytes of lines that a group has, and rows, at most."""


def group_of(size: int) -> int:
    """Return how many rows, or pixels, each ``size`` bytes of lines, make a group."""
    return max(1, min(ROOM // size, MOST) // TILE) * TILE


def groups_of(count: Any, group: int) -> Any:
    """Return how many groups there are."""
    return tirx.floordiv(count + (group - 1), group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """``extents`` of the axes before steps, numbers or expressions."""

    extents: tuple[Any, ...]

    @classmethod
    def of(cls, extents: Sequence[Any]) -> Rows:
        """Return it for the shape of a tensor."""
        return cls(extents=tuple(int(item) if isinstance(item, tirx.IntImm | int) else item for item in extents))

    @property
    def is_open(self) -> bool:
        """Whether a call brings their number."""
        return not all(isinstance(extent, int) for extent in self.extents)

    @property
    def count(self) -> Any:
        """How many there are."""
        return math.prod(self.extents)

    def group(self, size: int) -> int:
        """Return how many make a group, each ``size`` bytes of lines: all, filled up to whole tiles, where known."""
        return group_of(size) if self.is_open else filled(self.count)

    def groups(self, group: int) -> Any:
        """Return how many groups there are."""
        return groups_of(self.count, group) if self.is_open else 1

    def place(self, row: Any) -> list[Any]:
        """Return the place of a row of all on each axis."""
        places = []
        for axis, extent in enumerate(self.extents):
            index = tirx.floordiv(row, math.prod(self.extents[axis + 1 :]))
            places.append(tirx.floormod(index, extent) if axis else index)
        return places

    def number(self, place: Sequence[Any]) -> Any:
        """Return which row of all is at a place."""
        return sum(index * math.prod(self.extents[axis + 1 :]) for axis, index in enumerate(place))


def by_groups(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel that writes any number of rows, or pixels, group by group; another as it is.

    What is fused behind it is in the block that writes. TVM's schedules do not see which rows those of a group are.
    """
    sch = Schedule(function)
    anchor = next((block for block in primitives.blocks(sch) if GROUP in sch.get(block).annotations), None)
    if anchor is None:
        return function
    group, sums = int(sch.get(anchor).annotations[GROUP]), sch.get(anchor).writes[0].source
    root, names = function.body.block, [sch.get(block).name_hint for block in primitives.blocks(sch)]
    first = 1 + names.index(sch.get(anchor).name_hint)
    behind = [realize for nest in root.body.seq[first:] for realize in rewriting.realizes(nest)]
    last, inlined = _inlined(behind), [realize.block.writes[0].source for realize in behind[:-1]]
    extents = [part.extent for realize in behind for region in realize.block.writes for part in region.region]
    if last is None or not all(isinstance(extent, tirx.IntImm) and int(extent) == 1 for extent in extents):
        return function  # what the schedule refuses, with a reason
    axes = last.block.iter_vars
    is_image = IMAGE in sch.get(anchor).annotations
    if is_image and len(axes) != BLOCKED:
        return function
    place = _pixels_in_groups if is_image else _rows_in_groups
    used = [item for item in root.alloc_buffers if not any(item.same_as(made) for made in inlined)]
    body = tirx.SeqStmt([*root.body.seq[:first], _in_groups(last, sums, place(axes, sums, group))])
    block = s_tir.SBlock([], [], [], root.name_hint, body, alloc_buffers=used)
    return function.with_body(SBlockRealize([], True, block))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a result lies: loops' ``names`` and ``extents``, and of their variables the place ``of`` it, that of its
    sum, and whether it is there."""

    names: tuple[str, ...]
    extents: tuple[Any, ...]
    of: Callable[..., tuple[list[Any], list[Any], Any]]


def _rows_in_groups(axes: Sequence[Any], sums: Any, group: int) -> Place:
    rows, nr = Rows.of([axis.dom.extent for axis in axes[:-1]]), int(sums.ty.shape[3])
    width = nr * LANES

    def of(g: Any, m: Any, n: Any) -> tuple[list[Any], list[Any], Any]:
        row = g * group + m
        tile = n % width // LANES if nr > 1 else tirx.const(0, "int64")
        return [*rows.place(row), n], [g, n // width, m, tile, n % LANES], row < rows.count

    extents = (sums.ty.shape[0], tirx.const(group, "int64"), axes[-1].dom.extent)
    return Place(names=("g", "m", "n"), extents=extents, of=of)


def _pixels_in_groups(axes: Sequence[Any], sums: Any, group: int) -> Place:
    batch, blocks, height, width, lanes = (axis.dom.extent for axis in axes)
    nr, groups = int(sums.ty.shape[-2]), sums.ty.shape[1]

    def of(n: Any, g: Any, block: Any, m: Any, lane: Any) -> tuple[list[Any], list[Any], Any]:
        pixel = g * group + m
        place = [n, block, tirx.floordiv(pixel, width), tirx.floormod(pixel, width), lane]
        panel, tile = (block // nr, block % nr) if nr > 1 else (block, tirx.const(0, "int64"))
        return place, [n, g, panel, m, tile, lane], pixel < height * width

    extents = (batch, groups, blocks, tirx.const(group, "int64"), lanes)
    return Place(names=("n", "g", "block", "m", "lane"), extents=extents, of=of)


def _inlined(behind: Sequence[SBlockRealize]) -> SBlockRealize | None:
    """Return the last of some blocks with what those before it compute; None where one is more than a store.

    TVM's schedules do it only where they see that sums of all groups are all that is read.
    """
    known: dict[Any, tuple[list[Any], Any]] = {}

    def read(load: TensorLoad) -> Any:
        for buffer, (axes, value) in known.items():
            if load.source.same_as(buffer):
                return rewriting.substitute(value, dict(zip(axes, load.indices, strict=True)).get)
        return load

    for realize in behind:
        store = realize.block.body
        if not isinstance(store, tirx.BufferStore) or realize.block.init is not None:
            return None
        value = tvm_ffi.structural_map(store.value, [(TensorLoad, read)])
        known[store.buffer] = [*store.indices], value
    block = realize.block
    body = tirx.BufferStore(store.buffer, value, store.indices)
    whole = s_tir.SBlock(block.iter_vars, [], block.writes, block.name_hint, body)
    return s_tir.SBlockRealize(realize.iter_values, realize.predicate, whole)


def _in_groups(realize: SBlockRealize, sums: Any, place: Place) -> Any:
    """Return the loops of the block that writes, as ``place`` has them."""
    loops, axes = ([tirx.Var(f"{name}{kind}", "int64") for name in place.names] for kind in ("", "_axis"))
    result, at, is_there = place.of(*axes)
    old = realize.block
    new = dict(zip((axis.var for axis in old.iter_vars), result, strict=True))

    def read(load: TensorLoad) -> TensorLoad:
        return tirx.BufferLoad(load.source, at) if load.source.same_as(sums) else load

    def region(source: Any, indices: Any) -> Any:
        return tirx.BufferRegion(source, [Range.from_min_extent(index, 1) for index in indices])

    body: Any = rewriting.substitute(tvm_ffi.structural_map(old.body, [(TensorLoad, read)]), new.get)
    loads = rewriting.loads(body)
    places: dict[Any, list[Any]] = {}
    for load in loads:
        found = places.setdefault(load.source, [])
        if all(str(load.indices) != str(other) for other in found):
            found.append(load.indices)
    reads = [
        region(source, found[0])
        if len(found) == 1
        else tirx.BufferRegion(source, [Range.from_min_extent(0, extent) for extent in source.ty.shape])
        for source, found in places.items()
    ]
    writes = [region(body.buffer, body.indices)]
    iter_vars = [tirx.IterVar((0, extent), axis, 0) for extent, axis in zip(place.extents, axes, strict=True)]
    block = s_tir.SBlock(iter_vars, reads, writes, old.name_hint, tirx.IfThenElse(is_there, body, None))
    nest: Any = SBlockRealize(loops, True, block)
    for loop, extent in reversed(list(zip(loops, place.extents, strict=True))):
        nest = tirx.For(loop, tirx.const(0, "int64"), extent, tirx.ForKind.SERIAL, nest)
    return nest


def bound_groups(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``function`` without those tiles of the last group that have no row."""
    if not any(GROUP in loop.annotations for loop in rewriting.loops(function.body)):
        return function
    shape = rewriting.realizes(function.body)[-1].block.writes[0].source.ty.shape
    is_image = any(IMAGE in loop.annotations for loop in rewriting.loops(function.body))
    count = shape[2] * shape[3] if is_image else Rows.of(shape[:-1]).count
    noted = [loop.annotations[GROUP] for loop in rewriting.loops(function.body) if GROUP in loop.annotations]
    group, unit = map(int, noted[0])

    def present(realize: SBlockRealize) -> SBlockRealize:
        if realize.block.name_hint != LINES or is_image:
            return realize
        g, _, _, row, _ = realize.iter_values
        return s_tir.SBlockRealize(realize.iter_values, g * group + row < count, realize.block)

    def bound(loop: tirx.For, mutator: Any) -> Any:
        if GROUP not in loop.annotations:
            return mutator.default_mutate(loop)
        inside = [inner.loop_var for inner in rewriting.loops(loop)]
        g = rewriting.at_zero(rewriting.realizes(loop)[0].iter_values[1 if is_image else 0], inside)
        notes = {name: note for name, note in loop.annotations.items() if name not in (GROUP, IMAGE)}
        extent = tirx.min(loop.extent, tirx.floordiv(count - g * group + (unit - 1), unit))
        body = mutator.default_mutate(loop).body
        return tirx.For(loop.loop_var, loop.min, extent, loop.kind, body, annotations=notes)

    body = rewriting.map_realizes(function.body, present)
    return function.with_body(tvm_ffi.structural_mutate(body, [(tirx.For, bound)]))


def is_few(sch: Schedule) -> bool:
    """Return whether a kernel is being scheduled for few rows."""
    return FEW in (sch.mod["main"].attrs or {})


def may_be_few(kernel: tirx.PrimFunc) -> bool:
    """Return whether a call may bring few rows, not pixels, to a kernel."""
    found = [realize.block.annotations for realize in rewriting.realizes(kernel.body)]
    return any(GROUP in notes and IMAGE not in notes for notes in found)


def by_count(many: tirx.PrimFunc, few: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel that computes as ``few`` does where a call brings few rows."""
    *leading, _ = rewriting.realizes(many.body)[-1].block.writes[0].source.ty.shape
    return rewriting.either(Rows.of(leading).count >= FEWEST, many, few)
