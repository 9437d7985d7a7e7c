"""Winograd's filtering of images whose height and width are known only when they run, or are no whole number of tiles.

The tiles of an image are counted through, row after row, and cut into groups that fill half of the second cache when
they are transformed. A group's loops have numbers for extents whatever the image; the last group computes as many
tiles of the register tile as it has, of which some may lie beyond the image, and stores what there is. The templates'
transforms are those of `tiles`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from math import prod
from typing import Any

import tvm_ffi
from tvm import s_tir, te, tirx
from tvm.ir import Range, TensorLoad
from tvm.s_tir import SBlockRealize, Schedule

from forge_pipeline.codegen.float32.conv import dynamic_shape
from forge_pipeline.codegen.float32.conv.geometry import Geometry, simplify
from forge_pipeline.codegen.float32.conv.winograd.products import multiply, schedule_products, start_sums
from forge_pipeline.codegen.float32.conv.winograd.tiles import (
    STAGES,
    Transform,
    divided,
    image_components,
    inline_epilogue,
    place_image,
    result_tiles,
)
from forge_pipeline.codegen.tir import primitives, rewriting
from forge_pipeline.codegen.tir.edges.tail_tiles import even_share
from forge_pipeline.codegen.tir.machine import Machine

NAME = "open_winograd"

UNIT = "forge.tiles_of_group"
"""The annotation of a loop over a group's tiles: how many each turn computes, and the numbers of `Group`."""

IMAGE_AXES = 5
"""Those of a blocked image: batch, block of channels, height, width, lane."""

LARGEST = 64
"""Tiles of a group at most: what one thread takes at a time."""

MOST_PARTS = 4
"""Groups that threads share, at least: each reads all weights."""


@dataclass(frozen=True, slots=True)
class Group:
    """``tiles`` of a group, a multiple of ``pixels``, those of a register tile by ``vectors`` of filters.

    ``parts``: how many groups an image has at least, where threads share groups; 1 where they do not.
    """

    tiles: int
    pixels: int
    vectors: int
    parts: int

    def taken(self, tiles: Any) -> Any:
        """Return how many of an image's ``tiles`` a group takes: what threads share is as much for each."""
        if self.parts == 1:
            return self.tiles
        known = tirx.const(tiles, "int64") if isinstance(tiles, int) else tiles
        return even_share(known, self.tiles, self.pixels, self.parts) * self.pixels


def choose_group(
    machine: Machine, channels: int, oc_blocks: int, transform: Transform, images: Sequence[Geometry]
) -> Group:
    """Return the group for ``images`` of typical sizes; ``channels``: with the last block full."""
    counts = tuple(prod(transform.tiles(image)) for image in images)
    pixels, vectors = dynamic_shape.typical_tile(machine, oc_blocks, channels, widths=counts)
    room = machine.l2 // 2 // (machine.item * transform.size**2 * channels)
    parts = 1 if shares_filters(machine, oc_blocks, vectors) else min(machine.cores, MOST_PARTS)
    return Group(tiles=max(1, min(room, LARGEST) // pixels) * pixels, pixels=pixels, vectors=vectors, parts=parts)


def shares_filters(machine: Machine, oc_blocks: int, vectors: int) -> bool:
    """Return whether threads share filters, as on the small images that have many of them, rather than groups."""
    return oc_blocks // vectors >= machine.cores


def convolve(image: te.Tensor, weight: te.Tensor, geometry: Geometry, transform: Transform, group: Group) -> te.Tensor:
    """Describe the convolution of a blocked image with weights as ``winograd_weight`` makes them."""
    geometry = geometry.of(image)
    oc_blocks, ic_blocks, step, number = int(weight.shape[0]), int(image.shape[1]), transform.step, group.tiles
    dtype, (tiles_h, tiles_w) = image.dtype, transform.tiles(geometry)
    taken = simplify(group.taken(tiles_h * tiles_w))
    components = image_components(image, tirx.const(0.0, dtype), dtype, ic_blocks, geometry, transform, number, taken)
    products = multiply(components, weight, {UNIT: list(astuple(group))})
    batch, groups, *_, lanes = products.shape

    def component(n: Any, g: Any, oc: Any, t: Any, i: Any, j: Any, lane: Any) -> Any:
        return products[n, g, oc, i, j, t, lane]

    result = result_tiles((batch, groups, oc_blocks, number), lanes, component, dtype, transform)

    def place(n: Any, oc: Any, h: Any, w: Any, lane: Any) -> Any:
        tile = h // step * tiles_w + w // step
        return result[n, tile // taken, oc, tile % taken, h % step, w % step, lane]

    shape = (batch, oc_blocks, *geometry.output, lanes)
    return te.compute(shape, place, name="convolve", attrs={primitives.FAMILY: NAME})


def by_tiles(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel of this family that writes its output tile by tile, in groups; another as it is.

    What is fused behind it is in the block that writes. TVM's schedules cannot split and fuse their way to this order:
    they do not see that tile ``t`` of a row-major count is at row ``t // tiles_w`` where ``tiles_w`` is open.
    """
    sch = Schedule(function)
    families = [primitives.family_of(sch, block) for block in primitives.blocks(sch)]
    if NAME not in families:
        return function
    inline_epilogue(sch, primitives.find(sch, NAME))
    function = sch.mod["main"]
    root = function.body.block
    *before, nest = root.body.seq
    (last,) = rewriting.realizes(nest)
    extents = [part.extent for region in (*last.block.reads, *last.block.writes) for part in region.region]
    is_pixelwise = all(isinstance(extent, tirx.IntImm) and int(extent) == 1 for extent in extents)
    if len(last.block.iter_vars) != IMAGE_AXES or not is_pixelwise:
        return function  # what the schedule refuses, with a reason
    group = _group_of(sch)
    body = tirx.SeqStmt([*before, _in_groups(last, rewriting.realizes(root.body), group)])
    block = s_tir.SBlock([], [], [], root.name_hint, body, alloc_buffers=root.alloc_buffers)
    return function.with_body(SBlockRealize([], True, block))


def _group_of(sch: Schedule) -> Group:
    return Group(*(int(number) for number in sch.get(sch.get_sblock(STAGES[3])).annotations[UNIT]))


def _in_groups(realize: SBlockRealize, blocks: list[SBlockRealize], group: Group) -> Any:
    """Return the loops of the block that writes, over groups of tiles; ``blocks`` are all of the kernel."""
    result = next(item.block.writes[0].source for item in blocks if item.block.name_hint == STAGES[5])
    batch, groups, oc_blocks, number, step, _, lanes = result.ty.shape
    n, oc, h, w, lane = (axis.var for axis in realize.block.iter_vars)
    height, width = (axis.dom.extent for axis in realize.block.iter_vars[2:4])
    tiles_w = simplify(divided(width, step))
    taken = simplify(group.taken(divided(height, step) * tiles_w))
    names = ("n", "g", "oc", "t", "y", "x", "lane")
    extents = (batch, groups, oc_blocks, number, step, step, lanes)
    loops, axes = ([tirx.Var(f"{name}{kind}", "int64") for name in names] for kind in ("", "_axis"))

    tile = axes[1] * taken + axes[3]
    row, column = tirx.floordiv(tile, tiles_w) * step + axes[4], tirx.floormod(tile, tiles_w) * step + axes[5]

    def read(load: TensorLoad) -> TensorLoad:
        return tirx.BufferLoad(load.source, axes) if load.source.same_as(result) else load

    new = {n: axes[0], oc: axes[2], h: row, w: column, lane: axes[6]}
    body: Any = rewriting.substitute(tvm_ffi.structural_map(realize.block.body, [(TensorLoad, read)]), new.get)

    def region(old: Any) -> Any:
        at = axes if old.source.same_as(result) else [rewriting.substitute(part.min, new.get) for part in old.region]
        return tirx.BufferRegion(old.source, [Range.from_min_extent(index, 1) for index in at])

    iter_vars = [tirx.IterVar((0, extent), axis, 0) for extent, axis in zip(extents, axes, strict=True)]
    old = realize.block
    reads, writes = ([region(item) for item in regions] for regions in (old.reads, old.writes))
    body = tirx.IfThenElse(tirx.all(row < height, column < width), body, None)
    block = s_tir.SBlock(iter_vars, reads, writes, old.name_hint, body, annotations={primitives.FAMILY: NAME})
    body = SBlockRealize(loops, True, block)
    for loop, extent in reversed(list(zip(loops, extents, strict=True))):
        body = tirx.For(loop, tirx.const(0, "int64"), extent, tirx.ForKind.SERIAL, body)
    return body


def schedule(sch: Schedule, machine: Machine) -> None:
    """Transform a group of tiles into the second cache, then multiply and transform back some filters at a time.

    Loops over pixels that are tested one by one are LLVM's to unroll: it takes TVM a second and more to simplify the
    tests of 36 pixels.
    """
    tiles, _, both, _, half, result = (sch.get_sblock(name) for name in STAGES)
    last = primitives.blocks(sch)[-1]
    group = _group_of(sch)
    pixels, vectors = group.pixels, group.vectors
    n, g, oc, t, _, _, lane = sch.get_loops(last)
    oc_blocks, lanes = primitives.static(sch, oc), primitives.static(sch, lane)
    size, ic_blocks = (primitives.static(sch, sch.get_loops(both)[axis]) for axis in (2, 4))
    oc_out, oc_in = sch.split(oc, [None, vectors])
    sch.reorder(oc_out, t, oc_in)
    sch.annotate(t, UNIT, [1, *astuple(group)])
    shared = primitives.fuse(sch, [n, g])
    for block in (result, half):
        sch.compute_at(block, oc_in, preserve_unit_loops=True)
        sch.set_scope(block, 0, "local")
    primitives.vectorize_and_unroll(sch, last, below=5, lanes=lanes)
    for block in (result, half):
        primitives.vectorize_and_unroll(sch, block, below=4, lanes=lanes)

    over_pixels = schedule_products(sch, machine, oc_out, pixels, lanes)
    sch.annotate(over_pixels, UNIT, [pixels, *astuple(group)])
    c, tile = place_image(sch, shared, lanes)
    sch.annotate(tile, UNIT, [1, *astuple(group)])
    sch.vectorize(sch.get_loops(tiles)[-1])
    if shares_filters(machine, oc_blocks, vectors):
        work = ic_blocks * lanes * size * size * primitives.UNKNOWN
        primitives.parallel_if_worth(sch, oc_out, work * oc_blocks * lanes)
        primitives.parallel_if_worth(sch, c, work)
    else:
        primitives.parallel_if_worth(sch, shared, primitives.SERIAL_WORK)
    start_sums(sch, lanes)


def bound_groups(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``function`` without turns of the loops over a group's tiles that compute none of the image."""
    if not any(UNIT in loop.annotations for loop in rewriting.loops(function.body)):
        return function
    last = rewriting.realizes(function.body)[-1].block
    step = last.iter_vars[4].dom.extent
    height, width = last.writes[0].source.ty.shape[2:4]
    tiles = divided(height, step) * divided(width, step)

    def bound(loop: tirx.For, mutator: Any) -> Any:
        if UNIT not in loop.annotations:
            return mutator.default_mutate(loop)
        unit, *shared = (int(number) for number in loop.annotations[UNIT])
        taken = Group(*shared).taken(tiles)
        inside = [inner.loop_var for inner in rewriting.loops(loop)]
        group = rewriting.at_zero(rewriting.realizes(loop)[0].iter_values[1], inside)
        left = divided(tirx.min(taken, tiles - group * taken), unit)
        notes = {name: note for name, note in loop.annotations.items() if name != UNIT}
        extent = tirx.min(loop.extent, left)
        return tirx.For(
            loop.loop_var, loop.min, extent, loop.kind, mutator.default_mutate(loop).body, annotations=notes
        )

    return function.with_body(tvm_ffi.structural_mutate(function.body, [(tirx.For, bound)]))
