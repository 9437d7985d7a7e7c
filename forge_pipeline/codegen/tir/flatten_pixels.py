"""Images whose pixels a kernel computes one by one, in order: a single row of height times width pixels.

A tile then goes on in the next row of the image, and only the last of all tiles may be cut off. The tensors keep their
shapes, and with them the function its interface: pixel p of the one row of ``image[n, c, 0, p]`` lies where pixel p of
the image does. Rows of several sequences that are multiplied by one matrix are such pixels too: those of a batch of
short sequences, or of one sequence whose steps come first, fill whole tiles.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Var
from tvm.s_tir import SBlock, SBlockRealize

from forge_pipeline.codegen.tir import rewriting

ANY_ORDER = "forge.any_order"
"""The annotation of a template's block whose results read one pixel each, the one that lies where they do; its value
is the first of the two axes that tell pixels apart."""

HEIGHT = 2
"""The first of these axes of an image, blocked or not."""


def flatten(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel with the pixels of its image in one row, if all of its blocks allow that, else as it is."""
    realizes: list[SBlockRealize] = []
    tvm_ffi.structural_walk(function.body, [(s_tir.SBlockRealize, realizes.append)])
    realizes = [realize for realize in realizes if realize.block.iter_vars]
    notes = [realize.block.annotations for realize in realizes if ANY_ORDER in realize.block.annotations]
    if not notes:
        return function
    first, own = int(notes[0][ANY_ORDER]), list(function.body.block.alloc_buffers)
    if not all(_is_pixelwise(realize, first, own) for realize in realizes):
        return function
    extents: dict[Any, Any] = {}
    for realize in realizes:
        height, width = (axis.dom.extent for axis in realize.block.iter_vars[first : first + 2])
        extents[realize.iter_values[first]] = tirx.const(1, "int64")
        extents[realize.iter_values[first + 1]] = height * width
    buffers = {buffer: _flat_buffer(buffer, first) for buffer in own}

    def buffer(old: Any) -> Any:
        return buffers.get(old, old)

    body = tvm_ffi.structural_map(rewriting.with_axes(function.body, extents), [(Var, buffer)])
    return function.with_body(body)


def _is_pixelwise(realize: SBlockRealize, first: int, own: list[Any]) -> bool:
    """Return whether a block computes pixel (h, w) from what lies at (h, w), and from what all pixels share."""
    block: SBlock = realize.block
    if len(block.iter_vars) < first + 2 or len(block.writes) != 1:
        return False
    h, w = (axis.var for axis in block.iter_vars[first : first + 2])
    shape = [axis.dom.extent for axis in block.iter_vars[first : first + 2]]
    if not all(isinstance(value, Var) for value in realize.iter_values[first : first + 2]):
        return False
    return all(_is_indexed_alike(region, (h, w), shape, first, own) for region in (*block.reads, *block.writes))


def _is_indexed_alike(region: Any, pixel: tuple[Any, Any], shape: list[Any], first: int, own: list[Any]) -> bool:
    """Return whether a region is that of one pixel, or one that all pixels share, of a tensor that keeps its shape."""
    used: list[Any] = []
    tvm_ffi.structural_walk([item.min for item in region.region], [(Var, used.append)])
    count = sum(seen.same_as(variable) for seen in used for variable in pixel)
    if not count:
        return len(region.region) < first + 2 or not any(region.source.same_as(buffer) for buffer in own)
    if len(region.region) < first + 2 or count != 2:
        return False
    places = [item.min for item in region.region[first : first + 2]]
    extents = region.source.ty.shape[first : first + 2]
    return all(place.same_as(variable) for place, variable in zip(places, pixel, strict=True)) and all(
        str(found) == str(expected) for found, expected in zip(extents, shape, strict=True)
    )


def _flat_buffer(buffer: Any, first: int) -> Any:
    shape = list(buffer.ty.shape)
    if len(shape) >= first + 2:
        shape[first : first + 2] = [tirx.const(1, "int64"), shape[first] * shape[first + 1]]
    return tirx.decl_buffer(shape, str(buffer.ty.dtype), buffer.name, scope=buffer.scope())
