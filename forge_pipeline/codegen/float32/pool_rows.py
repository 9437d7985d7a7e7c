"""Pooling in the plain layout, over one axis to three of any extents: one axis after the other, along rows.

The window of a pixel is that of its rows' windows, so that k x k numbers take 2 k steps. A row of results is made of a
row that combines the lines above each other, which stays in the first cache; LLVM makes vectors of both loops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.float32.conv.geometry import simplify
from forge_pipeline.codegen.float32.pool import require_pixels
from forge_pipeline.codegen.layout.builder import Graph, Value, has_known_shape, ints
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.elementwise_blocks import schedule_elementwise
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.codegen.tir.peel_padding import EDGES

NAME = "pool_rows"
ALONG, ACROSS = 32, 8
"""Neighbours, and lines, up to these are combined in a register: LLVM makes vectors of no more lines at once."""

ROWS = 8
"""Rows of results that are made together."""

LAYOUTS = ("NCW", "NCHW", "NCDHW")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Windows along one axis: ``size`` numbers, ``before`` what lies before them; ``reach`` past their end."""

    size: Any
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    output: Any
    reach: Any

    @property
    def is_kept(self) -> bool:
        """Whether each number is its own window."""
        return self.kernel == self.stride == 1 and not self.has_outside

    @property
    def has_outside(self) -> bool:
        """Whether a window may read what is no number of the image."""
        return bool(self.before) or not isinstance(self.reach, int) or bool(self.reach)

    @property
    def needs_pixels(self) -> bool:
        """Whether an axis without numbers has no window."""
        return bool(self.before + self.reach < (self.kernel - 1) * self.dilation + 1)

    def window(self, at: Any) -> tuple[Any, Any]:
        """Return where the window of result ``at`` begins, and where it ends."""
        begin = at * self.stride - self.before
        return begin, begin + self.kernel


def window(graph: Graph, call: relax.Call) -> Value | None:
    """Pool float32 of any extents; averages without dilation."""
    attributes, is_maximum = call.attrs, "max_pool" in call.op.name
    if attributes.layout not in LAYOUTS or not has_known_shape(call.args[0], symbolic_axes=range(5)):
        return None
    if not is_maximum and any(step != 1 for step in ints(attributes.dilation)):
        return None
    source = graph.plain(graph.look(call.args[0]))
    pooled = graph.kernel(_maximum if is_maximum else _average, source, name=NAME, attributes=attributes)
    return Value(plain=require_pixels(graph, pooled, attributes))


def _axes(volume: te.Tensor, attributes: Any) -> list[Axis]:
    lists = zip(ints(attributes.pool_size), ints(attributes.strides), ints(attributes.dilation), strict=True)
    padding, axes = ints(attributes.padding), []
    rank = len(padding) // 2
    for index, (kernel, stride, dilation) in enumerate(lists):
        size, before, after = volume.shape[2 + index], padding[index], padding[rank + index]
        size = int(size) if isinstance(size, tirx.IntImm) else size
        extent = (kernel - 1) * dilation + 1
        rounding = stride - 1 if attributes.ceil_mode else 0
        output = (size + before + after - extent + rounding) // stride + 1
        if isinstance(size, int):
            if attributes.ceil_mode and (output - 1) * stride >= size + before:  # it would start past the image
                output -= 1
            reach = max((output - 1) * stride + extent - size - before, 0)
        else:
            reach = after + rounding
        axes.append(
            Axis(
                size=size, kernel=kernel, stride=stride, dilation=dilation, before=before, after=after,
                output=simplify(output), reach=reach,
            )
        )  # fmt: skip
    return axes


def _windows(volume: te.Tensor, axes: list[Axis], outside: Any, combine: Any) -> te.Tensor:
    """Combine each window, ``outside`` standing for what is outside of the image."""
    lines = volume
    for index, axis in enumerate(axes[:-1]):
        if not axis.is_kept:
            lines = _across(lines, 2 + index, axis, outside, combine)
    return _along(lines, axes[-1], outside, combine)


def _across(lines: te.Tensor, place: int, axis: Axis, outside: Any, combine: Any) -> te.Tensor:
    """Combine numbers that lie above each other."""
    tap = te.reduce_axis((0, axis.kernel), "tap")

    def element(*at: Any) -> Any:
        where = at[place] * axis.stride + tap * axis.dilation - axis.before
        if not axis.has_outside:
            return combine(lines(*at[:place], where, *at[place + 1 :]), axis=[tap])
        inside = tirx.all(where >= 0, where < axis.size)
        if axis.needs_pixels:  # there is a line to be read in place of one that is outside: no jumps
            where = tirx.max(tirx.min(where, axis.size - 1), 0)
        choose = tirx.Select if axis.needs_pixels else tirx.if_then_else
        return combine(choose(inside, lines(*at[:place], where, *at[place + 1 :]), outside), axis=[tap])

    shape = (*lines.shape[:place], axis.output, *lines.shape[place + 1 :])
    return te.compute(shape, element, name=f"across{place}")


def _along(lines: te.Tensor, axis: Axis, outside: Any, combine: Any) -> te.Tensor:
    """Combine neighbours of a row, from a copy of it with what is outside around it."""
    if axis.has_outside:
        source, begin = lines, axis.before

        def element(*at: Any) -> Any:
            inside = tirx.all(at[-1] >= begin, at[-1] < axis.size + begin)
            return tirx.if_then_else(inside, source(*at[:-1], at[-1] - begin), outside)

        shape = (*lines.shape[:-1], axis.size + begin + axis.reach)
        lines = te.compute(shape, element, name="surrounded", attrs={EDGES: len(shape) - 1})
    tap = te.reduce_axis((0, axis.kernel), "tap")
    return te.compute(
        (*lines.shape[:-1], axis.output),
        lambda *at: combine(lines(*at[:-1], at[-1] * axis.stride + tap * axis.dilation), axis=[tap]),
        name=NAME,
        attrs={primitives.FAMILY: NAME},
    )


def _maximum(volume: te.Tensor, attributes: Any) -> te.Tensor:
    return _windows(volume, _axes(volume, attributes), tirx.const(-math.inf, volume.dtype), te.max)


def _average(volume: te.Tensor, attributes: Any) -> te.Tensor:
    axes = _axes(volume, attributes)
    sums = _windows(volume, axes, tirx.const(0, volume.dtype), te.sum)
    counts_padding = bool(attributes.count_include_pad)

    def count(at: Any, axis: Axis) -> Any:
        begin, end = axis.window(at)
        if not axis.has_outside or (counts_padding and not attributes.ceil_mode):
            return axis.kernel
        low, high = (-axis.before, axis.size + axis.after) if counts_padding else (0, axis.size)
        return tirx.Cast("int32", tirx.min(end, high)) - tirx.Cast("int32", tirx.max(begin, low))

    def element(n: Any, c: Any, *place: Any) -> Any:
        counted = math.prod(count(at, axis) for at, axis in zip(place, axes, strict=True))
        if isinstance(counted, int):
            return sums(n, c, *place) * tirx.const(1 / counted, sums.dtype)
        return sums(n, c, *place) / tirx.Cast(sums.dtype, counted)

    return te.compute(sums.shape, element, name="average")


def schedule(sch: Schedule, machine: Machine) -> None:
    """Make a row of results of rows in the first cache; rows over the threads."""
    anchor = primitives.find(sch, NAME)
    stages = {f"across{place}" for place in range(5)} | {"surrounded"}
    lines = [block for block in primitives.ancestors(sch, anchor) if sch.get(block).name_hint in stages]
    names = {sch.get(block).name_hint for block in lines}
    before, last = primitives.split_around(sch, anchor)
    for block in before:
        if sch.get(block).name_hint not in names:
            schedule_elementwise(sch, block, machine)
    work = primitives.product(primitives.UNKNOWN if item is None else item for item in primitives.extents(sch, anchor))
    *outer, line, row, _ = sch.get_loops(anchor)
    group, _ = sch.split(line, [None, min(ROWS, primitives.extent(sch, line) or ROWS)])
    sch.reverse_compute_at(last, row)
    for block in reversed(lines):
        if not primitives.is_reduction(sch, block):
            sch.compute_at(block, group, preserve_unit_loops=True)
        elif primitives.static(sch, sch.get_loops(block)[-1]) <= ACROSS:
            sch.compute_at(copy := sch.cache_write(block, 0, "local"), group, preserve_unit_loops=True)
            sch.compute_at(block, sch.get_loops(copy)[-1], preserve_unit_loops=True)
            sch.unroll(sch.get_loops(block)[-1])
        else:
            sch.compute_at(block, group, preserve_unit_loops=True)
            *_, along, tap = sch.get_loops(block)
            sch.reorder(tap, along)
    tap = sch.get_loops(anchor)[-1]
    if primitives.static(sch, tap) <= ALONG:
        sch.unroll(tap)
    shared = primitives.fuse_where_provable(sch, [*outer, group])  # at last: TVM no longer sees what the loops are of
    primitives.parallel_if_worth(sch, shared, work)


HANDLERS = dict.fromkeys((f"relax.nn.{kind}_pool{space}d" for kind in ("max", "avg") for space in (1, 2, 3)), window)
