"""Pooling over one axis or three, in the plain layout: rows along the innermost axis, which LLVM turns into vectors."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.layout.builder import Graph, Value, has_known_shape, ints
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine

NAME = "pool_rows"
UNROLLED = 27
"""Window sizes up to this are unrolled."""

LAYOUTS = ("NCW", "NCDHW")


def window(graph: Graph, call: relax.Call) -> Value | None:
    """Pool float32 of static extents, but for the batch; averages without dilation."""
    attributes, is_maximum = call.attrs, "max_pool" in call.op.name
    if attributes.layout not in LAYOUTS or not has_known_shape(call.args[0]):
        return None
    if not is_maximum and any(step != 1 for step in ints(attributes.dilation)):
        return None
    source = graph.plain(graph.look(call.args[0]))
    return Value(plain=graph.kernel(_maximum if is_maximum else _average, source, name=NAME, attributes=attributes))


def _axes(volume: te.Tensor, attributes: Any) -> list[dict[str, int]]:
    """Return for every pooled axis what its windows are; ``reach`` is how far the last one goes past the end."""
    lists = {
        "kernel": ints(attributes.pool_size),
        "stride": ints(attributes.strides),
        "dilation": ints(attributes.dilation),
    }
    padding, axes = ints(attributes.padding), []
    rank = len(lists["kernel"])
    for index in range(rank):
        axis = {name: values[index] for name, values in lists.items()}
        size, before, after = int(volume.shape[2 + index]), padding[index], padding[rank + index]
        extent = (axis["kernel"] - 1) * axis["dilation"] + 1
        rounding = axis["stride"] - 1 if attributes.ceil_mode else 0
        output = (size + before + after - extent + rounding) // axis["stride"] + 1
        if attributes.ceil_mode and (output - 1) * axis["stride"] >= size + before:  # it would start past the image
            output -= 1
        reach = (output - 1) * axis["stride"] + extent - size - before
        axes.append({**axis, "size": size, "before": before, "after": after, "output": output, "reach": max(reach, 0)})
    return axes


def _windows(volume: te.Tensor, axes: list[dict[str, int]], outside: Any, combine: Any) -> te.Tensor:
    """Combine each window; what lies outside is copied around the volume first, so that windows have no tests."""
    padded = volume
    if any(axis["before"] or axis["reach"] for axis in axes):
        extents = [axis["before"] + axis["size"] + axis["reach"] for axis in axes]

        def pad(n: Any, c: Any, *place: Any) -> Any:
            own = [at - axis["before"] for at, axis in zip(place, axes, strict=True)]
            inside = [part for at, axis in zip(own, axes, strict=True) for part in (at >= 0, at < axis["size"])]
            return tirx.if_then_else(tirx.all(*inside), volume(n, c, *own), outside)

        padded = te.compute((*volume.shape[:2], *extents), pad, name="surrounded")
    taps = [te.reduce_axis((0, axis["kernel"]), f"tap{index}") for index, axis in enumerate(axes)]

    def element(n: Any, c: Any, *place: Any) -> Any:
        where = [at * axis["stride"] + tap * axis["dilation"] for at, tap, axis in zip(place, taps, axes, strict=True)]
        return combine(padded(n, c, *where), axis=taps)

    shape = (*volume.shape[:2], *(axis["output"] for axis in axes))
    return te.compute(shape, element, name=NAME, attrs={primitives.FAMILY: NAME})


def _maximum(volume: te.Tensor, attributes: Any) -> te.Tensor:
    return _windows(volume, _axes(volume, attributes), tirx.const(-math.inf, volume.dtype), te.max)


def _average(volume: te.Tensor, attributes: Any) -> te.Tensor:
    axes = _axes(volume, attributes)
    sums = _windows(volume, axes, tirx.const(0, volume.dtype), te.sum)

    def count(at: Any, axis: dict[str, int]) -> Any:
        low, high = (0, axis["size"])
        if attributes.count_include_pad:
            low, high = -axis["before"], axis["size"] + axis["after"]
        begin = at * axis["stride"] - axis["before"]
        return tirx.min(begin + axis["kernel"], high) - tirx.max(begin, low)

    def element(n: Any, c: Any, *place: Any) -> Any:
        counts = [count(at, axis) for at, axis in zip(place, axes, strict=True)]
        return sums(n, c, *place) / tirx.Cast(sums.dtype, math.prod(counts[1:], start=counts[0]))

    return te.compute(sums.shape, element, name="average")


def schedule(sch: Schedule, machine: Machine) -> None:
    """Combine a window in a register, along a row; rows over the threads."""
    anchor = primitives.find(sch, NAME)
    before, last = primitives.split_around(sch, anchor)
    for block in before:
        primitives.schedule_elementwise(sch, block, machine)
    loops = sch.get_loops(anchor)
    extents = [primitives.extent(sch, loop) for loop in loops]
    pooled = (len(loops) - 2) // 2
    outer, row, taps = loops[: 1 + pooled], loops[1 + pooled], loops[2 + pooled :]
    sch.reverse_compute_at(last, row)
    primitives.parallel_if_worth(sch, primitives.fuse(sch, outer), primitives.product(extents))
    sch.decompose_reduction(anchor, taps[0])
    if primitives.product(extents[2 + pooled :]) <= UNROLLED:
        for tap in taps:
            sch.unroll(tap)


HANDLERS = dict.fromkeys(
    ("relax.nn.max_pool1d", "relax.nn.avg_pool1d", "relax.nn.max_pool3d", "relax.nn.avg_pool3d"), window
)
