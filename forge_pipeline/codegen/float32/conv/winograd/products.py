"""Winograd's products in float32 and in halves: tiles by filters for each component, however the tiles are counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from forge_pipeline.codegen.float32.conv.direct import block_and_lane
from forge_pipeline.codegen.float32.conv.winograd.tiles import STAGES
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.codegen.tir.prefetch.weights import ask_for_next


def multiply(components: te.Tensor, weight: te.Tensor, attributes: Mapping[str, Any] | None = None) -> te.Tensor:
    """Describe components of an image times weights as ``winograd_weight`` makes them: (..., row, i, j, tile, lane)."""
    *outer, size, _, _, number, lanes = components.shape
    parts, unit = (int(extent) for extent in weight.shape[3:5])
    part, channel = te.reduce_axis((0, parts), "block"), te.reduce_axis((0, unit), "channel")
    block, begin = block_and_lane(part, unit, int(lanes))

    def product(*at: Any) -> Any:
        *before, row, i, j, t, out = at
        pixel = components(*before, i, j, block, t, begin + channel)
        return te.sum(pixel * weight[row, i, j, part, channel, out], axis=[part, channel])

    shape = (*outer, weight.shape[0], size, size, number, lanes)
    return te.compute(shape, product, name=STAGES[3], attrs=dict(attributes or {}))


def schedule_products(sch: Schedule, machine: Machine, oc_out: LoopRV, pixels: int, lanes: int) -> LoopRV:
    """Multiply inside ``oc_out``, ``pixels`` tiles by its filters in registers; return the loop over these tiles."""
    products = sch.get_sblock(STAGES[3])
    sch.compute_at(products, oc_out, preserve_unit_loops=True)
    copy = sch.cache_write(products, 0, "local")
    oc_in, i, j, pixel, out, block, channel = sch.get_loops(products)[-7:]
    pixel_out, pixel_in = sch.split(pixel, [None, pixels])
    sch.reorder(i, j, pixel_out, block, channel, pixel_in, oc_in, out)
    ask_for_next(sch, pixel_out, machine)
    sch.reverse_compute_at(copy, pixel_out)
    sch.vectorize(out)
    sch.unroll(pixel_in)
    sch.unroll(oc_in)
    primitives.vectorize_and_unroll(sch, copy, below=len(sch.get_loops(products)) - 5, lanes=lanes)
    return pixel_out


def start_sums(sch: Schedule, lanes: int) -> None:
    """Set the sums of a tile to zero before its steps; once this is done, TVM moves no other block to the products."""
    products = sch.get_sblock(STAGES[3])
    loops = sch.get_loops(products)
    first = sch.decompose_reduction(products, loops[-5])
    primitives.vectorize_and_unroll(sch, first, below=len(loops) - 5, lanes=lanes)
