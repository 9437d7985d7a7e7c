"""Kernels for products of two activations in bytes, and for the softmax of their rows.

The right operand is packed when the model runs, moved to int8 by an exclusive or. With a = x - p and b = y - q

    sum (x - zx) (y - zy) = sum a b - (zx - p) sum b - (zy - q) sum a + K (zx - p) (zy - q)

where the sums of b belong to a column and those of a to a row: two small kernels in front of the product. Where bytes
are widened anyway, zx is taken away on the way and there is nothing to do for columns. All of it is exact in int32.

A softmax behind it is computed on a block of rows as soon as their sums are there: no scores are ever in memory but
those of the block. Where nobody else reads its shares, the block is multiplied by the values at once (``attend``): of
attention only what it makes is written. Columns that fill the last vector have a share of zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from forge_pipeline.codegen.int8.isa.dot_product import BYTES, SIGN_BIT, DotProduct, products, tensorize
from forge_pipeline.codegen.int8.isa.table import dot_product
from forge_pipeline.codegen.int8.requantize import to_float_if_needed
from forge_pipeline.codegen.layout.affine import Affine, Clip, clipped_float, quotient, stored
from forge_pipeline.codegen.layout.builder import Value
from forge_pipeline.codegen.layout.rearranged import Rearranged
from forge_pipeline.codegen.tir import peel_padding, primitives, rewriting
from forge_pipeline.codegen.tir.lane_reduction import reduce_in_lanes
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.codegen.tir.math import short_math

NAME = "int8_batched_matmul"
SOFTMAX = "int8_softmax"
"""The family of products that a softmax follows in the same kernel: nothing else is fused with it."""

ATTENTION = "int8_attention"
"""The family of those whose shares are multiplied by values there too: nothing else is fused with it."""

PACK = "int8_panels"
"""The family of the right operand's panels."""

SUMS = "integer_zero_terms"
"""The family of the sums of rows, and of a packed operand's columns."""

LEAST = -1e30
"""A score below those of any column that counts."""

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
    applied to its rows last, and gives zeros to a row without a column that counts if ``zero_for_nan``. ``place``
    is where the left operand's elements are, by batch, row and step, if not where its shape says.
    """

    zeros: tuple[int, int]
    scale: float
    depth: int
    shape: tuple[int, ...]
    steps: tuple[Step, ...] = ()
    softmax: bool = False
    zero_for_nan: bool = False
    place: Rearranged | None = None
    clip: Clip = field(default_factory=Clip)

    @property
    def leading(self) -> tuple[int, ...]:
        """The axes of operands and result in front of the last two: ones and the batch, or the batch alone."""
        leading = self.shape[:-2]
        return leading if leading and primitives.product(leading[:-1]) == 1 else (primitives.product(leading),)

    def left(self, tensor: te.Tensor, b: Any, m: Any, k: Any) -> Any:
        """Return an element of the left operand."""
        if self.place is not None:
            return self.place.read(tensor, b, m, k)
        return tensor(*[0] * (len(self.leading) - 1), b, m, k)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSums:
    """Sums by batch, row and column, of ``shape``: rows fill tiles and columns vectors."""

    at: Callable[[Any, Any, Any], Any]
    shape: tuple[int, int, int]


def pack(right: te.Tensor, shape: tuple[int, int, int], place: Rearranged, width: int, k_inner: int) -> te.Tensor:
    """Describe uint8, (batch, steps, columns) by ``place``, as int8 (batch, panels, steps / k_inner, width, k_inner).

    What fills the last panel is zero; the last group repeats the last step, for which the left operand has its zero.
    """
    batch, steps, columns = shape

    def element(b: Any, panel: Any, at: Any, column: Any, byte: Any) -> Any:
        k, n, zero = at * k_inner + byte, panel * width + column, tirx.const(0, "int8")
        k = k if steps % k_inner == 0 else tirx.min(k, steps - 1)
        value = tirx.reinterpret("int8", place.read(right, b, k, n) ^ tirx.const(SIGN_BIT, "uint8"))
        return value if columns % width == 0 else tirx.if_then_else(n < columns, value, zero)

    return te.compute(
        (batch, -(-columns // width), -(-steps // k_inner), width, k_inner), element, name="pack",
        attrs={primitives.FAMILY: PACK},
    )  # fmt: skip


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
    product: BatchedProduct, affine: Affine | None, names: Sequence[str], mr: int, dot: DotProduct, machine: Machine,
) -> te.Tensor:  # fmt: skip
    """Describe (.., batch, rows, steps) times a packed operand, and what is done to the sums."""
    family = SOFTMAX if product.softmax else NAME
    exact = exact_sums(left, packed, dict(zip(names, terms, strict=False)), product, mr, dot, family)
    rest, (rows, columns) = list(terms[len(names) :]), product.shape[-2:]
    shape = (*product.leading, rows, columns)
    if product.softmax:
        return shares_of(exact, rest, product, shape, affine)
    epilogue = epilogue_of(product, affine, rest, fused=machine.fused)
    return te.compute(
        shape, lambda *at: epilogue(exact.at(*at[-3:]), *at[-3:]), name=f"finish_{to_float_if_needed(affine)}"
    )


def exact_sums(
    left: te.Tensor, packed: te.Tensor, terms: Mapping[str, te.Tensor], product: BatchedProduct,
    mr: int, dot: DotProduct, family: str,
) -> ExactSums:  # fmt: skip
    """Describe the sums of a product, for kernels of ``family``, and what is added to them for its zero points."""
    batch, rows = product.leading[-1], product.shape[-2]
    _, panels, groups, width, count = (int(extent) for extent in packed.shape)
    padded_rows = -(-rows // mr) * mr
    k_outer, k_inner = te.reduce_axis((0, groups), "k_outer"), te.reduce_axis((0, count), "k_inner")
    source = _source(left, (batch, padded_rows, groups * count), product, dot)
    total = te.compute(
        (batch, padded_rows, panels, width),
        lambda b, m, panel, n: te.sum(
            products(source(b, m, k_outer * count + k_inner), packed(b, panel, k_outer, n, k_inner)),
            axis=[k_outer, k_inner],
        ),
        name="sums",
        attrs={primitives.FAMILY: family, ROWS: mr},
    )

    def exact(b: Any, m: Any, n: Any) -> Any:
        value = total(b, m, n // width, n % width)
        if "row" in terms:
            value = value + terms["row"](b, m if padded_rows == rows else tirx.min(m, rows - 1))
        return value + terms["column"](b, n // width, n % width) if "column" in terms else value

    return ExactSums(at=exact, shape=(batch, padded_rows, panels * width))


def _source(
    left: te.Tensor, shape: tuple[int, int, int], product: BatchedProduct, dot: DotProduct
) -> Callable[..., Any]:
    """Describe the left operand with its margin, of its zero point, widened where it has to be."""
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
        zero = 0 if dot.widens else product.zeros[0]
        return tirx.if_then_else(tirx.all(*conditions), value, tirx.const(zero, value.ty.dtype))

    source: Callable[..., Any] = te.compute(shape, element, name="source")
    return source


def epilogue_of(
    product: BatchedProduct, affine: Affine | None, terms: Sequence[te.Tensor], *, fused: bool
) -> Callable[..., Any]:
    """Return what becomes of an exact sum at a place, where it is stored."""
    is_bare = not product.steps

    def epilogue(total: Any, b: Any, m: Any, n: Any) -> Any:
        unit = np.float32(affine.scale if affine is not None and is_bare else 1)
        value = total.astype("float32") * tirx.const(float(np.float32(product.scale) / unit), "float32")
        tensors = iter(terms)
        for step in product.steps:
            if step.constant is None:
                value = value + broadcast(next(tensors), b, m, n)
            elif step.kind == "relax.divide":
                value = quotient(value, step.constant, fused=fused)
            else:
                number = tirx.const(step.constant, "float32")
                value = value + number if step.kind == "relax.add" else value * number
        if affine is None:
            return clipped_float(value, product.clip)
        return stored(value if is_bare else quotient(value, affine.scale, fused=fused), affine, product.clip)

    return epilogue


def broadcast(term: te.Tensor, *at: Any) -> Any:
    """Return the element of a tensor that belongs to a place: axes of one element have it everywhere."""
    return term(*(0 if int(extent) == 1 else index for extent, index in zip(term.shape, at, strict=True)))


def _score(product: BatchedProduct, terms: Sequence[te.Tensor]) -> Callable[..., Any]:
    """Return the score that an exact sum is: constants in front of the first sum are one factor."""

    def score(total: Any, b: Any, m: Any, n: Any) -> Any:
        tensors, value, factor = iter(terms), total.astype("float32"), product.scale
        for step in (*product.steps, None):
            if step is not None and step.kind != "relax.add" and step.constant is not None:
                factor *= step.constant if step.kind == "relax.multiply" else 1 / step.constant
                continue
            value, factor = value * tirx.const(float(np.float32(factor)), "float32"), 1.0
            if step is not None:
                other = broadcast(next(tensors), b, m, n) if step.constant is None else step.constant
                value = value + other
        return value

    return score


def shares_of(
    exact: ExactSums, terms: Sequence[te.Tensor], product: BatchedProduct, shape: Sequence[int],
    affine: Affine | None, result: Callable[[Any], Any] = lambda share: share,
) -> te.Tensor:  # fmt: skip
    """Describe the softmax of rows, of ``shape``: extremes and sums a vector at a time, then those of its lanes.

    What lies behind the columns has a share of zero. ``result`` is what becomes of a share.
    """
    batch, padded_rows, full = exact.shape
    columns = product.shape[-1]
    score = _score(product, terms)

    def element_of_scores(b: Any, m: Any, n: Any) -> Any:
        value = score(exact.at(b, m, n), b, m, n)
        return value if full == columns else tirx.Select(n < columns, value, tirx.const(float("-inf"), "float32"))

    scores = te.compute((batch, padded_rows, full), element_of_scores, name="scores")
    least = tirx.const(LEAST, "float32")
    top = reduce_rows("top", scores, te.max)

    def power(b: Any, m: Any, n: Any) -> Any:
        most = tirx.max(top(b, m), least) if product.zero_for_nan else top(b, m)
        score = scores(b, m, n)
        return te.exp(score - most) if affine is None else short_math.exp_of_difference(score, most)

    powers = te.compute(scores.shape, power, name="powers")
    total = reduce_rows("total", powers, te.sum)
    unit = tirx.const(1 / affine.scale if affine is not None else 1.0, "float32")

    def inverted(b: Any, m: Any) -> Any:
        none = tirx.const(0, "float32")
        return tirx.Select(total(b, m) > 0, unit / total(b, m), none) if product.zero_for_nan else unit / total(b, m)

    inverse = te.compute(total.shape, inverted, name="inverse")

    def element(*at: Any) -> Any:
        b, m, n = at[-3:]
        share = powers(b, m, n) * inverse(b, m)
        return result(clipped_float(share, product.clip) if affine is None else stored(share, affine, product.clip))

    return te.compute(tuple(shape), element, name="softmax")


def reduce_rows(name: str, tensor: te.Tensor, reduce: Callable[..., Any]) -> te.Tensor:
    """Describe a reduction of the rows of (batch, rows, columns), which fill vectors."""
    column, kind = te.reduce_axis((0, int(tensor.shape[-1])), "column"), _wide(tensor)
    return te.compute(
        tensor.shape[:2], lambda b, m: reduce(tensor(b, m, column).astype(kind), axis=[column]), name=name
    )


def _wide(tensor: te.Tensor) -> str:
    return "float32" if tensor.dtype == "float32" else "int32"


def schedule(sch: Schedule, machine: Machine) -> None:
    """Hold a tile of rows by a panel in registers along all steps; a block of rows stays in the first cache."""
    anchor = next(block for block in primitives.blocks(sch) if primitives.family_of(sch, block) in (NAME, SOFTMAX))
    named = {str(sch.get(block).name_hint): block for block in primitives.blocks(sch)}
    if primitives.family_of(sch, anchor) == SOFTMAX:
        hold_rows(sch, anchor, [named[name] for name in CHAIN], machine)
    else:
        *inner, last = (block for name, block in named.items() if name not in ("sums", "source"))
        for block in inner:
            sch.compute_inline(block)
        hold_rows(sch, anchor, [last], machine)
    multiply(sch, anchor, machine)


CHAIN = ("scores", "top", "powers", "total", "inverse", "softmax")
"""The blocks of a softmax, in order."""


def hold_rows(sch: Schedule, sums: SBlockRV, chain: Sequence[SBlockRV], machine: Machine) -> LoopRV:
    """Compute ``chain`` as soon as a block of rows has what it reads, the first of them by panel; return its loop."""
    mr = int(sch.get(sums).annotations[ROWS])
    b, m, panel, column, k_outer, k_inner = sch.get_loops(sums)
    work = primitives.product(primitives.extents(sch, sums))
    m_out, m_in = sch.split(m, [None, mr])
    vector, lane = sch.split(column, [None, machine.lanes])
    sch.reorder(b, m_out, panel, k_outer, m_in, vector, lane, k_inner)
    row_block = sch.fuse(b, m_out)
    sch.set_scope(sums, 0, "local")
    for block in chain:
        sch.reverse_compute_at(block, panel if block is chain[0] else row_block)
    source = next((block for block in primitives.blocks(sch) if sch.get(block).name_hint == "source"), None)
    if source is not None:
        sch.compute_at(source, row_block)
    primitives.parallel_if_worth(sch, row_block, work)
    for block in (*chain, *([source] if source is not None else [])):
        vectors(sch, block, machine)
    return row_block


def multiply(sch: Schedule, sums: SBlockRV, machine: Machine) -> None:
    """Unroll a tile of sums, and compute a vector of them with the CPU's instructions."""
    k_outer, m_in, vector, lane, _ = sch.get_loops(sums)[-5:]
    sch.unroll(m_in)
    sch.unroll(vector)
    primitives.vectorize_and_unroll(
        sch, sch.decompose_reduction(sums, k_outer), below=len(sch.get_loops(sums)) - 5, lanes=machine.lanes
    )
    tensorize(sch, lane, machine, dot_product(machine), BYTES, full=True)


def vectors(sch: Schedule, block: SBlockRV, machine: Machine) -> None:
    """Turn a block's rows into vectors where they fill them, and the reduction of a row into one of lanes."""
    column = sch.get_loops(block)[-1]
    if primitives.is_reduction(sch, block):
        sch.decompose_reduction(block, column)
        reduce_in_lanes(sch, column, machine)
    else:
        primitives.vectorize_where_filled(sch, block, machine.lanes)


def schedule_pack(sch: Schedule, machine: Machine) -> None:
    """Move the bytes of a group together where they lie so, and else leave it to LLVM to take rows in turns."""
    pack = primitives.find(sch, PACK)
    *outer, _, byte = sch.get_loops(pack)
    work = primitives.product(primitives.extents(sch, pack))
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
