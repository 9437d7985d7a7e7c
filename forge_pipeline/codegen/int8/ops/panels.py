"""The operands of products of two activations in bytes: panels that are packed when the model runs, and zero points.

Bytes of the right operand are moved to int8 by an exclusive or. With a = x - p and b = y - q

    sum (x - zx) (y - zy) = sum a b - (zx - p) sum b - (zy - q) sum a + K (zx - p) (zy - q)

where the sums of b belong to a column and those of a to a row: two small kernels in front of the product. Where bytes
are widened anyway, zx is taken away on the way and there is nothing to do for columns. All of it is exact in int32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.int8.isa.dot_product import SIGN_BIT
from forge_pipeline.codegen.layout.builder import Extent
from forge_pipeline.codegen.layout.rearranged import Rearranged
from forge_pipeline.codegen.tir import peel_padding, primitives, rewriting
from forge_pipeline.codegen.tir.machine import Machine

PACK = "int8_panels"
"""The family of the right operand's panels."""

SUMS, COLUMN_SUMS = "integer_zero_terms", "column_sums"
"""The family of the sums of rows, and of a packed operand's columns; and the block of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """How a kernel reads one side of a product: ``place`` knows (batches..., ``rows``, ``columns``) of it."""

    place: Rearranged
    rows: Extent
    columns: Extent
    batches: tuple[Extent, ...]


def pack(right: te.Tensor, operand: Operand, groups: Any, width: int, k_inner: int) -> te.Tensor:
    """Describe uint8 (batches..., steps, columns) as int8 (batches..., panels, ``groups`` of steps, width, k_inner).

    What fills the last panel is zero; the last group repeats the last step, for which the left operand has its zero.
    """
    steps, columns, zero = operand.rows, operand.columns, tirx.const(0, "int8")
    is_whole = isinstance(steps, int) and steps == groups * k_inner

    def element(*at: Any) -> Any:
        *batch, panel, group, column, byte = at
        k, n = group * k_inner + byte, panel * width + column
        value = operand.place.read(right, *batch, k if is_whole else tirx.min(k, steps - 1), n)
        value = tirx.reinterpret("int8", value ^ tirx.const(SIGN_BIT, "uint8"))
        is_full = isinstance(columns, int) and columns % width == 0
        return value if is_full else tirx.if_then_else(n < columns, value, zero)

    shape = (*operand.batches, quotient_of(columns, width), groups, width, k_inner)
    return te.compute(shape, element, name="pack", attrs={primitives.FAMILY: PACK})


def quotient_of(extent: Any, size: int) -> Any:
    """Return how many parts of a size an extent fills."""
    return -(-extent // size) if isinstance(extent, int) else tirx.floordiv(extent + (size - 1), size)


def column_terms(packed: te.Tensor, zero: int) -> te.Tensor:
    """Describe what is added to the sums of each column, by batch, panel and column: what a ``zero`` of rows makes."""
    *shape, groups, width, count = packed.shape
    outer, inner = te.reduce_axis((0, groups), "k_outer"), te.reduce_axis((0, count), "k_inner")
    sums = te.compute(
        (*shape, width),
        lambda *at: te.sum(packed(*at[:-1], outer, at[-1], inner).astype("int32"), axis=[outer, inner]),
        name=COLUMN_SUMS, attrs={primitives.FAMILY: SUMS},
    )  # fmt: skip
    return te.compute(sums.shape, lambda *at: sums(*at) * -zero, name="column_terms")


def row_terms(left: te.Tensor, operand: Operand, zeros: tuple[int, int]) -> te.Tensor:
    """Describe what is added to the sums of each row, (batches..., rows): what the second of ``zeros`` makes of it.

    The first is the row's own zero point.
    """
    step = te.reduce_axis((0, operand.columns), "step")
    sums = te.compute(
        (*operand.batches, operand.rows),
        lambda *at: te.sum(operand.place.read(left, *at, step).astype("int32"), axis=[step]),
        name="row_sums", attrs={primitives.FAMILY: SUMS},
    )  # fmt: skip
    constant = operand.columns * zeros[0]
    return te.compute(sums.shape, lambda *at: (constant - sums(*at)) * zeros[1], name="row_terms")


def schedule_pack(sch: Schedule, machine: Machine) -> None:
    """Move the bytes of a group together where they lie so, and else leave it to LLVM to take rows in turns."""
    pack = primitives.find(sch, PACK)
    *outer, _, byte = sch.get_loops(pack)
    work = primitives.work_of(primitives.extents(sch, pack))
    axis = sch.get(pack).iter_vars[-1].var
    if rewriting.reads(sch.get(pack).reads[0].region[-1].min, axis):
        sch.vectorize(byte)
    else:
        sch.unroll(byte)
    if peel_padding.is_decided_along(sch.get(pack), len(outer)):
        sch.annotate(pack, peel_padding.EDGES, len(outer))
    primitives.parallel_if_worth(sch, primitives.fuse(sch, outer), work)


def schedule_sums(sch: Schedule, machine: Machine) -> None:
    """Sum rows one by one, and columns a vector at a time."""
    anchor = primitives.find(sch, SUMS)
    _, last = primitives.split_around(sch, anchor)
    if sch.get(anchor).name_hint != COLUMN_SUMS:
        sch.reverse_compute_at(last, sch.get_loops(anchor)[-2])
        return
    *outer, n, k_outer, k_inner = sch.get_loops(anchor)
    vector, lane = sch.split(n, [None, machine.lanes])
    sch.reorder(*outer, vector, k_outer, k_inner, lane)
    sch.reverse_compute_at(last, vector)
    sch.vectorize(lane)
    sch.vectorize(sch.get_loops(last)[-1])
    sch.vectorize(sch.get_loops(sch.decompose_reduction(anchor, k_outer))[-1])
