"""Resizing one axis by a table: which pixels a result reads, and with which weights. One kernel for each axis.

In blocked form a pixel is a vector, wherever it is read from; in plain form a row is vectorized by LLVM.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, s_tir, te
from tvm.s_tir import Schedule

from forge_pipeline.codegen.layout.builder import Graph, Value
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.elementwise_blocks import schedule_elementwise
from forge_pipeline.codegen.tir.machine import Machine

NAME = "resample"
AXIS = "forge.axis"
"""The annotation with the axis that is resized."""

PIXEL_AXES = (2, 3)
"""Height and width, in either layout."""

UNROLLED = 8
"""Taps up to this are unrolled."""


def resample(image: te.Tensor, first: te.Tensor, weights: te.Tensor, axis: int) -> te.Tensor:
    """Describe ``out[.., o, ..]`` as the sum over k of ``weights[o, k] * image[.., first[o] + k, ..]``."""
    output, count = (int(extent) for extent in weights.shape)
    tap = te.reduce_axis((0, count), "tap")

    def element(*index: Any) -> Any:
        place = index[axis]
        pixel = image(*index[:axis], first[place] + tap, *index[axis + 1 :])
        return te.sum(pixel * weights[place, tap], axis=[tap])

    shape = (*image.shape[:axis], output, *image.shape[axis + 1 :])
    return te.compute(shape, element, name=NAME, attrs={primitives.FAMILY: NAME, AXIS: axis})


def match_resample(graph: Graph, call: relax.Call) -> tuple[relax.Expr, int, relax.Expr, relax.Expr] | None:
    """Return image, axis, first pixels and weights of a call of a kernel that resizes; None for other kernels."""
    kernel = graph.builder.get()[call.args[0]]
    sch = s_tir.Schedule(kernel)
    found = [block for block in primitives.blocks(sch) if primitives.family_of(sch, block) == NAME]
    if not found:
        return None
    source, first, weights, *_ = call.args[1].fields  # extents may follow: those of the image
    return source, int(sch.get(found[0]).annotations[AXIS]), first, weights


def blocked_resample(graph: Graph, call: relax.Call) -> Value | None:
    """Resize height or width of an image that is blocked already."""
    found = match_resample(graph, call)
    if found is None:
        return None
    source, axis, first, weights = found
    value = graph.look(source)
    if axis not in PIXEL_AXES or not graph.is_blocked(value):
        return None
    tables = [graph.plain(graph.look(table)) for table in (first, weights)]
    return Value(blocked=graph.kernel(resample, value.blocked, *tables, name=NAME, axis=axis), channels=value.channels)


def schedule(sch: Schedule, machine: Machine) -> None:
    """Sum the taps of one vector, or of one number, in a register."""
    anchor = primitives.find(sch, NAME)
    before, last = primitives.split_around(sch, anchor)
    for block in before:
        schedule_elementwise(sch, block, machine)
    *outer, inner, tap = sch.get_loops(anchor)
    extents = [primitives.extent(sch, loop) for loop in (*outer, inner, tap)]
    innermost, lanes = extents[-2], machine.lanes
    is_vector = innermost is not None and innermost % lanes == 0 and int(sch.get(anchor).annotations[AXIS]) < len(outer)
    at = inner
    if is_vector:
        at, inner = sch.split(inner, [None, lanes])
    sch.reverse_compute_at(last, at)
    primitives.parallel_if_worth(sch, primitives.fuse(sch, outer), primitives.product(extents)) if outer else None
    if is_vector:
        sch.reorder(tap, inner)
        sch.vectorize(inner)
        primitives.vectorize_and_unroll(sch, last, below=len(sch.get_loops(last)), lanes=lanes)
    start = sch.decompose_reduction(anchor, tap)
    if is_vector:
        primitives.vectorize_and_unroll(sch, start, below=len(sch.get_loops(start)), lanes=lanes)
    if (primitives.extent(sch, tap) or UNROLLED + 1) <= UNROLLED:
        sch.unroll(tap)


HANDLERS = {"relax.call_tir": blocked_resample}
