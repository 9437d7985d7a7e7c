"""Images whose pixels a kernel computes one by one, in order: a single row of height times width pixels.

A tile then goes on in the next row of the image, and only the last of all tiles may be cut off. The tensors keep their
shapes, and with them the function its interface: pixel p of the one row of ``image[n, c, 0, p]`` lies where pixel p of
the image does.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Var
from tvm.s_tir import SBlock, SBlockRealize

ANY_ORDER = "forge.any_order"
"""The annotation of a template's block whose results read one pixel each, the one that lies where they do."""

HEIGHT, WIDTH = 2, 3
"""The axes of an image, blocked or not."""


def flatten(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel with the pixels of its image in one row, if all of its blocks allow that, else as it is."""
    realizes: list[SBlockRealize] = []
    tvm_ffi.structural_walk(function.body, [(s_tir.SBlockRealize, realizes.append)])
    realizes = [realize for realize in realizes if realize.block.iter_vars]
    if not any(ANY_ORDER in realize.block.annotations for realize in realizes):
        return function
    if not all(_is_pixelwise(realize) for realize in realizes):
        return function
    extents: dict[Any, Any] = {}
    for realize in realizes:
        height, width = (realize.block.iter_vars[axis].dom.extent for axis in (HEIGHT, WIDTH))
        extents[realize.iter_values[HEIGHT]] = tirx.const(1, "int64")
        extents[realize.iter_values[WIDTH]] = height * width
    buffers = {buffer: _flat_buffer(buffer) for buffer in function.body.block.alloc_buffers}

    def loop(old: tirx.For) -> tirx.For:
        extent = extents.get(old.loop_var, old.extent)
        return tirx.For(old.loop_var, old.min, extent, old.kind, old.body, annotations=old.annotations)

    def block(old: SBlockRealize) -> SBlockRealize:
        if not old.block.iter_vars:
            return old
        inner = old.block
        axes = [
            tirx.IterVar((0, extents.get(value, axis.dom.extent)), axis.var, axis.iter_type)
            for axis, value in zip(inner.iter_vars, old.iter_values, strict=True)
        ]
        changed = s_tir.SBlock(
            axes, inner.reads, inner.writes, inner.name_hint, inner.body, inner.init, annotations=inner.annotations
        )
        return s_tir.SBlockRealize(old.iter_values, old.predicate, changed)

    def buffer(old: Any) -> Any:
        return buffers.get(old, old)

    body = tvm_ffi.structural_map(function.body, [(tirx.For, loop), (s_tir.SBlockRealize, block), (Var, buffer)])
    return function.with_body(body)


def _is_pixelwise(realize: SBlockRealize) -> bool:
    """Return whether a block computes pixel (h, w) from what lies at (h, w), and from what all pixels share."""
    block: SBlock = realize.block
    if len(block.iter_vars) <= WIDTH or len(block.writes) != 1:
        return False
    h, w = (block.iter_vars[axis].var for axis in (HEIGHT, WIDTH))
    shape = [block.iter_vars[axis].dom.extent for axis in (HEIGHT, WIDTH)]
    if not all(isinstance(realize.iter_values[axis], Var) for axis in (HEIGHT, WIDTH)):
        return False
    return all(_is_indexed_alike(region, h, w, shape) for region in (*block.reads, *block.writes))


def _is_indexed_alike(region: Any, h: Any, w: Any, shape: list[Any]) -> bool:
    used: list[Any] = []
    tvm_ffi.structural_walk([item.min for item in region.region], [(Var, used.append)])
    if not any(seen.same_as(h) or seen.same_as(w) for seen in used):
        return True
    if len(region.region) <= WIDTH or sum(seen.same_as(h) or seen.same_as(w) for seen in used) != 2:
        return False
    places = [region.region[axis].min for axis in (HEIGHT, WIDTH)]
    extents = [region.source.ty.shape[axis] for axis in (HEIGHT, WIDTH)]
    return all(place.same_as(variable) for place, variable in zip(places, (h, w), strict=True)) and all(
        str(found) == str(expected) for found, expected in zip(extents, shape, strict=True)
    )


def _flat_buffer(buffer: Any) -> Any:
    shape = list(buffer.ty.shape)
    if len(shape) > WIDTH:
        shape[HEIGHT : WIDTH + 1] = [tirx.const(1, "int64"), shape[HEIGHT] * shape[WIDTH]]
    return tirx.decl_buffer(shape, str(buffer.ty.dtype), buffer.name, scope=buffer.scope())
