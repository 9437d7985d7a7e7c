"""Kernels for products of two activations in bytes, and for the softmax of their rows.

The right operand is packed when the model runs, moved to int8 by an exclusive or. With a = x - p and b = y - q

    sum (x - zx) (y - zy) = sum a b - (zx - p) sum b - (zy - q) sum a + K (zx - p) (zy - q)

where the sums of b belong to a column and those of a to a row: two small kernels in front of the product. Where bytes
are widened anyway, zx is taken away on the way and there is nothing to do for columns. All of it is exact in int32.

A softmax behind it is computed on a block of rows as soon as their sums are there: no scores are ever in memory but
those of the block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from forge_pipeline.codegen.int8.isa.dot_product import BYTES, SIGN_BIT, DotProduct, products, tensorize
from forge_pipeline.codegen.int8.isa.table import dot_product
from forge_pipeline.codegen.int8.requantize import to_float_if_needed
from forge_pipeline.codegen.layout.affine import Affine, Clip, clipped_float, quotient, stored
from forge_pipeline.codegen.layout.builder import Value
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine

NAME = "int8_batched_matmul"
SOFTMAX = "int8_softmax"
"""The family of products that a softmax follows in the same kernel: nothing else is fused with it."""

SUMS = "integer_zero_terms"
"""The family of the sums of rows, and of a packed operand's columns."""

ROWS = "forge.rows"
"""The annotation with the rows of the tile that a template was laid out for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is done to a product in float: ``kind`` of operator, and its constant, or a tensor of the same rank."""

    kind: str
    constant: float | None = None
    tensor: Value | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedProduct:
    """What a kernel knows of a product of bytes, (batch, rows, depth) and (batch, depth, columns).

    ``zeros`` are the zero points, ``scale`` is the product of both scales, ``shape`` the result's. ``softmax`` is
    applied to its rows last. ``joined``: rows of the left operand are read from (1, rows, batch * depth).
    """

    zeros: tuple[int, int]
    scale: float
    depth: int
    shape: tuple[int, ...]
    steps: tuple[Step, ...] = ()
    softmax: bool = False
    joined: bool = False
    clip: Clip = field(default_factory=Clip)

    @property
    def leading(self) -> tuple[int, ...]:
        """The axes of operands and result in front of the last two: ones and the batch, or the batch alone."""
        leading = self.shape[:-2]
        return leading if leading and primitives.product(leading[:-1]) == 1 else (primitives.product(leading),)

    def left(self, tensor: te.Tensor, b: Any, m: Any, k: Any) -> Any:
        """Return an element of the left operand."""
        if self.joined:
            return tensor(0, m, b * self.depth + k)
        return tensor(*[0] * (len(self.leading) - 1), b, m, k)


def pack(right: te.Tensor, width: int, k_inner: int) -> te.Tensor:
    """Describe (.., batch, steps, columns) of uint8 as (batch, panels, steps / k_inner, width, k_inner) of int8.

    Axes before the batch have one element. What fills the last panel and the last group is zero.
    """
    *ones, batch, steps, columns = (int(extent) for extent in right.shape)

    def element(b: Any, panel: Any, at: Any, column: Any, byte: Any) -> Any:
        k, n = at * k_inner + byte, panel * width + column
        value = tirx.reinterpret("int8", right(*[0] * len(ones), b, k, n) ^ tirx.const(SIGN_BIT, "uint8"))
        conditions = [k < steps] * bool(steps % k_inner) + [n < columns] * bool(columns % width)
        return tirx.if_then_else(tirx.all(*conditions), value, tirx.const(0, "int8")) if conditions else value

    return te.compute((batch, -(-columns // width), -(-steps // k_inner), width, k_inner), element, name="pack")


def column_terms(packed: te.Tensor, zero: int) -> te.Tensor:
    """Describe what is added to the sums of each column, (batch, columns): what a ``zero`` of the rows makes of it."""
    batch, panels, groups, width, count = (int(extent) for extent in packed.shape)
    k_outer, k_inner = te.reduce_axis((0, groups), "k_outer"), te.reduce_axis((0, count), "k_inner")
    sums = te.compute(
        (batch, panels, width),
        lambda b, panel, n: te.sum(packed(b, panel, k_outer, n, k_inner).astype("int32"), axis=[k_outer, k_inner]),
        name="column_sums", attrs={primitives.FAMILY: SUMS},
    )  # fmt: skip
    return te.compute((batch, panels, width), lambda *at: sums(*at) * -zero, name="column_terms")


def row_terms(left: te.Tensor, product: BatchedProduct, zero: int) -> te.Tensor:
    """Describe what is added to the sums of each row, (batch, rows): what a ``zero`` of the columns makes of it."""
    shape, step = (product.leading[-1], product.shape[-2]), te.reduce_axis((0, product.depth), "step")
    sums = te.compute(
        shape, lambda b, m: te.sum(product.left(left, b, m, step).astype("int32"), axis=[step]),
        name="row_sums", attrs={primitives.FAMILY: SUMS},
    )  # fmt: skip
    constant = product.depth * product.zeros[0]
    return te.compute(shape, lambda *at: (constant - sums(*at)) * zero, name="row_terms")


def by_row_blocks(
    left: te.Tensor, packed: te.Tensor, *terms: te.Tensor,
    product: BatchedProduct, affine: Affine | None, names: list[str], mr: int, dot: DotProduct, machine: Machine,
) -> te.Tensor:  # fmt: skip
    """Describe (.., batch, rows, steps) times a packed operand, and what is done to the sums."""
    *ones, batch = product.leading
    rows, columns = product.shape[-2:]
    _, panels, groups, width, count = (int(extent) for extent in packed.shape)
    padded_rows = -(-rows // mr) * mr
    exactly = dict(zip(names, terms, strict=False))

    k_outer, k_inner = te.reduce_axis((0, groups), "k_outer"), te.reduce_axis((0, count), "k_inner")
    source = _source(left, (batch, padded_rows, groups * count), product, dot)
    total = te.compute(
        (batch, padded_rows, panels, width),
        lambda b, m, panel, n: te.sum(
            products(source(b, m, k_outer * count + k_inner), packed(b, panel, k_outer, n, k_inner)),
            axis=[k_outer, k_inner],
        ),
        name="sums",
        attrs={primitives.FAMILY: SOFTMAX if product.softmax else NAME, ROWS: mr},
    )

    def exact(b: Any, m: Any, n: Any) -> Any:
        value = total(b, m, n // width, n % width)
        if "row" in exactly:
            value = value + exactly["row"](b, m if padded_rows == rows else tirx.min(m, rows - 1))
        return value + exactly["column"](b, n // width, n % width) if "column" in exactly else value

    epilogue = _epilogue(product, affine, list(terms[len(names) :]), fused=machine.fused)
    if not product.softmax:
        return te.compute(
            (*ones, batch, rows, columns), lambda *at: epilogue(exact(*at[-3:]), *at[-3:]),
            name=f"finish_{to_float_if_needed(affine)}",
        )  # fmt: skip
    full = panels * width

    def score(b: Any, m: Any, n: Any) -> Any:
        value = epilogue(exact(b, m, n), b, m, n)
        return value if full == columns else tirx.Select(n < columns, value, tirx.const(float("-inf"), "float32"))

    scores = te.compute((batch, padded_rows, full), score, name="scores")
    return _softmax(scores, (*ones, batch, rows, columns), product.clip, affine, machine)


def _source(
    left: te.Tensor, shape: tuple[int, int, int], product: BatchedProduct, dot: DotProduct
) -> Callable[..., Any]:
    """Describe the left operand with its margin, of zeros, widened where it has to be."""
    rows, steps = product.shape[-2], product.depth
    if not dot.widens and shape == (product.leading[-1], rows, steps):
        return lambda b, m, k: product.left(left, b, m, k)

    def element(b: Any, m: Any, k: Any) -> Any:
        value = product.left(left, b, m, k)
        if dot.widens:
            value = value.astype("int16") - tirx.const(product.zeros[0], "int16")
        conditions = [m < rows] * (rows < shape[1]) + [k < steps] * (steps < shape[2])
        if not conditions:
            return value
        return tirx.if_then_else(tirx.all(*conditions), value, tirx.const(0, value.ty.dtype))

    source: Callable[..., Any] = te.compute(shape, element, name="source")
    return source


def _epilogue(
    product: BatchedProduct, affine: Affine | None, terms: list[te.Tensor], *, fused: bool
) -> Callable[..., Any]:
    """Return what becomes of an exact sum at a place: a score, or what is stored."""
    is_bare = not product.steps and not product.softmax

    def epilogue(total: Any, b: Any, m: Any, n: Any) -> Any:
        unit = np.float32(affine.scale if affine is not None and is_bare else 1)
        value = total.astype("float32") * tirx.const(float(np.float32(product.scale) / unit), "float32")
        tensors = iter(terms)
        for step in product.steps:
            if step.constant is None:
                term = next(tensors)
                at = (0 if int(extent) == 1 else index for extent, index in zip(term.shape, (b, m, n), strict=True))
                value = value + term(*at)
            elif step.kind == "relax.divide":
                value = quotient(value, step.constant, fused=fused)
            else:
                number = tirx.const(step.constant, "float32")
                value = value + number if step.kind == "relax.add" else value * number
        if product.softmax:
            return value
        if affine is None:
            return clipped_float(value, product.clip)
        return stored(value if is_bare else quotient(value, affine.scale, fused=fused), affine, product.clip)

    return epilogue


def _softmax(
    scores: te.Tensor, shape: tuple[int, ...], clip: Clip, affine: Affine | None, machine: Machine
) -> te.Tensor:
    """Describe the softmax of rows: extremes and sums a vector at a time, then those of its lanes."""
    batch, padded_rows, full = (int(extent) for extent in scores.shape)
    lanes, count = machine.lanes, full // machine.lanes

    def rowwise(name: str, tensor: te.Tensor, reduce: Any) -> te.Tensor:
        vector, lane = te.reduce_axis((0, count), "vector"), te.reduce_axis((0, lanes), "lane")
        partial = te.compute(
            (batch, padded_rows, lanes),
            lambda b, m, i: reduce(tensor(b, m, vector * lanes + i), axis=[vector]), name=f"{name}_lanes",
        )  # fmt: skip
        return te.compute((batch, padded_rows), lambda b, m: reduce(partial(b, m, lane), axis=[lane]), name=name)

    top = rowwise("top", scores, te.max)
    powers = te.compute(scores.shape, lambda b, m, n: te.exp(scores(b, m, n) - top(b, m)), name="powers")
    total = rowwise("total", powers, te.sum)
    inverse = te.compute(total.shape, lambda b, m: te.const(1.0, "float32") / total(b, m), name="inverse")

    def element(*at: Any) -> Any:
        b, m, n = at[-3:]
        value = powers(b, m, n) * inverse(b, m)
        if affine is None:
            return clipped_float(value, clip)
        return stored(quotient(value, affine.scale, fused=machine.fused), affine, clip)

    return te.compute(shape, element, name="softmax")


def schedule(sch: Schedule, machine: Machine) -> None:
    """Hold a tile of rows by a panel in registers along all steps; a block of rows stays in the first cache."""
    anchor = next(block for block in primitives.blocks(sch) if primitives.family_of(sch, block) in (NAME, SOFTMAX))
    is_softmax = primitives.family_of(sch, anchor) == SOFTMAX
    mr = int(sch.get(anchor).annotations[ROWS])
    named = {str(sch.get(block).name_hint): block for block in primitives.blocks(sch)}
    b, m, panel, column, k_outer, k_inner = sch.get_loops(anchor)
    work = primitives.product(primitives.extents(sch, anchor))
    m_out, m_in = sch.split(m, [None, mr])
    vector, lane = sch.split(column, [None, machine.lanes])
    sch.reorder(b, m_out, panel, k_outer, m_in, vector, lane, k_inner)
    row_block = sch.fuse(b, m_out)
    sch.set_scope(anchor, 0, "local")
    chain = [named[name] for name in CHAIN if name in named] if is_softmax else _behind(sch, anchor, named)
    for block in chain[:-1] if not is_softmax else []:
        sch.compute_inline(block)
    for block in chain if is_softmax else chain[-1:]:
        sch.reverse_compute_at(block, panel if block is chain[0] or not is_softmax else row_block)
    if "source" in named:
        sch.compute_at(named["source"], row_block)
    primitives.parallel_if_worth(sch, row_block, work)
    sch.unroll(m_in)
    sch.unroll(vector)
    for block in chain if is_softmax else chain[-1:]:
        _vectors(sch, block, machine)
    if "source" in named:
        _vectors(sch, named["source"], machine)
    primitives.vectorize_and_unroll(
        sch, sch.decompose_reduction(anchor, k_outer), below=len(sch.get_loops(anchor)) - 5, lanes=machine.lanes
    )
    tensorize(sch, lane, machine, dot_product(machine), BYTES, full=True)


CHAIN = ("scores", "top_lanes", "top", "powers", "total_lanes", "total", "inverse", "softmax")
"""The blocks of a softmax, in order."""


def _behind(sch: Schedule, anchor: SBlockRV, named: dict[str, SBlockRV]) -> list[SBlockRV]:
    """Return the blocks that follow the sums, in order."""
    return [block for name, block in named.items() if name not in ("sums", "source")]


def _vectors(sch: Schedule, block: SBlockRV, machine: Machine) -> None:
    """Turn the innermost axis of a block into vectors where it fills them; lanes of partial results too."""
    kinds = [int(variable.iter_type) == primitives.REDUCTION for variable in sch.get(block).iter_vars]
    loops = sch.get_loops(block)
    if kinds[-1]:
        if len(kinds) < 4:
            return  # lanes of a vector, or the steps of a row: few
        *_, lane, vector = loops
        sch.reorder(vector, lane)
        sch.vectorize(lane)
        return
    primitives.vectorize_where_filled(sch, block, machine.lanes)


def schedule_sums(sch: Schedule, machine: Machine) -> None:
    """Sum rows one by one, and columns a vector at a time."""
    anchor = primitives.find(sch, SUMS)
    _, last = primitives.split_around(sch, anchor)
    loops = sch.get_loops(anchor)
    if len(loops) == len(ROW_LOOPS):
        sch.reverse_compute_at(last, loops[1])
        return
    b, panel, n, k_outer, k_inner = loops
    vector, lane = sch.split(n, [None, machine.lanes])
    sch.reorder(b, panel, vector, k_outer, k_inner, lane)
    sch.reverse_compute_at(last, vector)
    sch.vectorize(lane)
    sch.vectorize(sch.get_loops(last)[-1])
    sch.vectorize(sch.get_loops(sch.decompose_reduction(anchor, k_outer))[-1])


ROW_LOOPS = ("batch", "row", "step")
"""The loops of the sums of rows; those of columns are more."""
