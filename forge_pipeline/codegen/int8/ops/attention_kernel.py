"""Kernels for products of two activations in bytes, and for the softmax of their rows.

The right operand is in panels, and what zero points add to the sums is in tensors of their own (``panels``).

A softmax behind it is computed on a block of rows as soon as their sums are there: no scores are ever in memory but
those of the block. Where nobody else reads its shares, the block is multiplied by the values at once (``attention``).

Extents may be open but for the steps of a product that does not take shares. The last block repeats the last row, as in
``float32.products.attention``, and columns that fill the last panel have a share of zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from forge_pipeline.codegen.float32.products.attention import Blocks
from forge_pipeline.codegen.int8.isa.dot_product import BYTES, DotProduct, products, tensorize
from forge_pipeline.codegen.int8.isa.table import dot_product
from forge_pipeline.codegen.int8.ops.panels import Operand
from forge_pipeline.codegen.int8.requantize import to_float_if_needed
from forge_pipeline.codegen.layout.affine import Affine, Clip, clipped_float, quotient, stored
from forge_pipeline.codegen.layout.builder import Extent, Value
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.broadcasting import is_one
from forge_pipeline.codegen.tir.lane_reduction import reduce_in_lanes
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.codegen.tir.math import short_math

NAME = "int8_batched_matmul"
SOFTMAX = "int8_softmax"
"""The family of products that a softmax follows in the same kernel."""

ATTENTION = "int8_attention"
"""The family of those whose shares are multiplied by values there too."""

LEAST = -1e30
"""A score below those of any column that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is done to a product in float: ``kind`` of operator, and its constant, or a tensor of the same rank."""

    kind: str
    constant: float | None = None
    tensor: Value | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedProduct:
    """What a kernel knows of a product of bytes, (.., rows, depth) and (.., depth, columns).

    ``zeros`` are the zero points, ``scale`` is the product of both scales, ``shape`` the result's. ``softmax`` is
    applied to its rows last, and gives zeros to a row without a column that counts if ``zero_for_nan``.
    """

    zeros: tuple[int, int]
    scale: float
    depth: Extent
    shape: tuple[Extent, ...]
    steps: tuple[Step, ...] = ()
    softmax: bool = False
    zero_for_nan: bool = False
    clip: Clip = field(default_factory=Clip)

    def blocks(self, tile: int) -> Blocks:
        """Return its rows in blocks of ``tile``."""
        return Blocks(shape=(*self.shape[:-1], self.depth), tile=tile)

    @property
    def batches(self) -> tuple[Extent, ...]:
        """The axes of a batch that have more than one element."""
        return tuple(self.blocks(1).batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSums:
    """Sums by batch, block, row of it, panel and column of it, of ``shape``."""

    at: Callable[..., Any]
    shape: tuple[Any, ...]


def by_row_blocks(
    left: te.Tensor, packed: te.Tensor, *terms: te.Tensor, product: BatchedProduct, operand: Operand,
    affine: Affine | None, names: Sequence[str], mr: int, dot: DotProduct, machine: Machine,
) -> te.Tensor:  # fmt: skip
    """Describe a product by a packed operand, and what is done to its sums, in tiles for ``crop``."""
    family, rest = SOFTMAX if product.softmax else NAME, terms[len(names) :]
    exact = exact_sums(left, packed, dict(zip(names, terms, strict=False)), product, operand, mr, dot, family)
    if product.softmax:
        return shares_of(exact, rest, product, affine)
    epilogue = epilogue_of(product, affine, rest, fused=machine.fused)
    return te.compute(
        exact.shape, lambda *at: epilogue(exact.at(*at), *_place(product, exact, at)),
        name=f"finish_{to_float_if_needed(affine)}",
    )  # fmt: skip


def _place(product: BatchedProduct, exact: ExactSums, at: Sequence[Any]) -> list[Any]:
    """Return where the product has what is at a place of its sums, in panels that may end behind its columns."""
    *batch, block, row, panel, n = at
    blocks = product.blocks(int(exact.shape[-3]))
    return [*blocks.whole(batch), blocks.row(block, row), panel * exact.shape[-1] + n]


def crop(tiles: te.Tensor, shape: Sequence[Any]) -> te.Tensor:
    """Describe tiles (batches..., blocks, rows, panels, width) as ``shape``, (.., rows, columns)."""
    rows, width = int(tiles.shape[-3]), int(tiles.shape[-1])

    def element(*at: Any) -> Any:
        *batch, row, n = at
        inner = [index for index, extent in zip(batch, shape, strict=False) if not is_one(extent)]
        return tiles(*inner, row // rows, row % rows, n // width, n % width)

    return te.compute(tuple(shape), element, name="crop")


def exact_sums(
    left: te.Tensor, packed: te.Tensor, terms: Mapping[str, te.Tensor], product: BatchedProduct, operand: Operand,
    mr: int, dot: DotProduct, family: str,
) -> ExactSums:  # fmt: skip
    """Describe the sums of a product, for kernels of ``family``, and what is added to them for its zero points."""
    blocks = product.blocks(mr)
    panels, groups, width, count = packed.shape[-4:]
    outer, inner = te.reduce_axis((0, groups), "k_outer"), te.reduce_axis((0, count), "k_inner")
    source = _source(left, (*blocks.extents, groups * count), product, operand, dot)
    shape = (*blocks.extents, panels, width)

    def sum_of_products(*at: Any) -> Any:
        *batch, block, row, panel, n = at
        number = source(*batch, block, row, outer * count + inner)
        return te.sum(products(number, packed(*batch, panel, outer, n, inner)), axis=[outer, inner])

    total = te.compute(shape, sum_of_products, name="sums", attrs={primitives.FAMILY: family})

    def exact(*at: Any) -> Any:
        *batch, block, row, panel, n = at
        value = total(*at)
        if "row" in terms:
            value = value + terms["row"](*batch, blocks.row(block, row))
        return value + terms["column"](*batch, panel, n) if "column" in terms else value

    return ExactSums(at=exact, shape=shape)


def _source(
    left: te.Tensor, shape: tuple[Any, ...], product: BatchedProduct, operand: Operand, dot: DotProduct
) -> te.Tensor:
    """Describe blocks of the left operand's rows, their margin of its zero point, widened where it has to be."""
    blocks, steps = product.blocks(int(shape[-2])), operand.columns

    def element(*at: Any) -> Any:
        *batch, block, row, k = at
        value = operand.place.read(left, *batch, blocks.row(block, row), k)
        zero: Any = tirx.const(product.zeros[0], "uint8")
        if dot.widens:
            value, zero = value.astype("int16") - zero.astype("int16"), tirx.const(0, "int16")
        return value if int(shape[-1]) == steps else tirx.if_then_else(k < steps, value, zero)

    return te.compute(shape, element, name="source")


def epilogue_of(
    product: BatchedProduct, affine: Affine | None, terms: Sequence[te.Tensor], *, fused: bool
) -> Callable[..., Any]:
    """Return what becomes of an exact sum at a place, where it is stored."""
    is_bare = not product.steps

    def epilogue(total: Any, *at: Any) -> Any:
        unit = np.float32(affine.scale if affine is not None and is_bare else 1)
        value = total.astype("float32") * tirx.const(float(np.float32(product.scale) / unit), "float32")
        tensors = iter(terms)
        for step in product.steps:
            if step.constant is None:
                value = value + broadcast(next(tensors), *at)
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
    return term(*(0 if is_one(extent) else index for extent, index in zip(term.shape, at, strict=True)))


def _score(product: BatchedProduct, terms: Sequence[te.Tensor]) -> Callable[..., Any]:
    """Return the score that an exact sum at a place is: constants in front of the first sum are one factor."""

    def score(total: Any, *at: Any) -> Any:
        tensors, value, factor = iter(terms), total.astype("float32"), product.scale
        for step in (*product.steps, None):
            if step is not None and step.kind != "relax.add" and step.constant is not None:
                factor *= step.constant if step.kind == "relax.multiply" else 1 / step.constant
                continue
            value, factor = value * tirx.const(float(np.float32(factor)), "float32"), 1.0
            if step is not None:
                value = value + (broadcast(next(tensors), *at) if step.constant is None else step.constant)
        return value

    return score


def shares_of(
    exact: ExactSums, terms: Sequence[te.Tensor], product: BatchedProduct, affine: Affine | None,
    result: Callable[[Any], Any] = lambda share: share,
) -> te.Tensor:  # fmt: skip
    """Describe the softmax of rows of sums; what lies behind the columns has a share of zero.

    ``result`` is what becomes of a share.
    """
    columns, score = product.shape[-1], _score(product, terms)
    is_full = isinstance(columns, int) and columns % int(exact.shape[-1]) == 0

    def element_of_scores(*at: Any) -> Any:
        place = _place(product, exact, at)
        value = score(exact.at(*at), *place)
        return value if is_full else tirx.Select(place[-1] < columns, value, tirx.const(float("-inf"), "float32"))

    scores = te.compute(exact.shape, element_of_scores, name="scores")
    top = reduce_rows("top", scores, te.max)

    def power(*at: Any) -> Any:
        most = top(*at[:-2])
        most = tirx.max(most, tirx.const(LEAST, "float32")) if product.zero_for_nan else most
        return te.exp(scores(*at) - most) if affine is None else short_math.exp_of_difference(scores(*at), most)

    powers = te.compute(scores.shape, power, name="powers")
    total = reduce_rows("total", powers, te.sum)
    unit = tirx.const(1 / affine.scale if affine is not None else 1.0, "float32")

    def inverted(*at: Any) -> Any:
        inverse = unit / total(*at)
        return tirx.Select(total(*at) > 0, inverse, tirx.const(0, "float32")) if product.zero_for_nan else inverse

    inverse = te.compute(total.shape, inverted, name="inverse")

    def element(*at: Any) -> Any:
        share = powers(*at) * inverse(*at[:-2])
        return result(clipped_float(share, product.clip) if affine is None else stored(share, affine, product.clip))

    return te.compute(exact.shape, element, name="softmax")


def reduce_rows(name: str, tensor: te.Tensor, reduce: Callable[..., Any]) -> te.Tensor:
    """Describe a reduction of the rows of (.., rows, panels, width)."""
    each = [te.reduce_axis((0, extent), "each") for extent in tensor.shape[-2:]]
    kind = "float32" if tensor.dtype == "float32" else "int32"
    return te.compute(tensor.shape[:-2], lambda *at: reduce(tensor(*at, *each).astype(kind), axis=each), name=name)


def schedule(sch: Schedule, machine: Machine) -> None:
    """Hold a tile of rows by a panel in registers along all steps; a block of rows stays in the first cache."""
    anchor = next(block for block in primitives.blocks(sch) if primitives.family_of(sch, block) in (NAME, SOFTMAX))
    named = {str(sch.get(block).name_hint): block for block in primitives.blocks(sch)}
    if primitives.family_of(sch, anchor) == SOFTMAX:
        chain = [named[name] for name in CHAIN]
    else:
        chain = [block for name, block in named.items() if name.startswith("finish")]
    hold_rows(sch, anchor, chain, machine)
    multiply(sch, anchor, machine)


CHAIN = ("scores", "top", "powers", "total", "inverse", "softmax")
"""The blocks of a softmax, in order."""


def hold_rows(sch: Schedule, sums: SBlockRV, chain: Sequence[SBlockRV], machine: Machine) -> LoopRV:
    """Compute ``chain`` as soon as a block of rows has what it reads, the first of them by panel; return its loop."""
    source = next(block for block in primitives.blocks(sch) if sch.get(block).name_hint == "source")
    *batches, block, row, panel, column, k_outer, k_inner = sch.get_loops(sums)
    work = primitives.work_of(primitives.extents(sch, sums))
    vector, lane = sch.split(column, [None, machine.lanes])
    sch.reorder(*batches, block, panel, k_outer, row, vector, lane, k_inner)
    if primitives.extent(sch, block) is not None or not batches:
        shared = block = primitives.fuse(sch, [*batches, block])
    else:  # what an open extent divides is no index of a reduction
        shared = primitives.fuse(sch, batches)
    sch.set_scope(sums, 0, "local")
    for following in chain:
        sch.reverse_compute_at(following, panel if following is chain[0] else block, preserve_unit_loops=True)
    sch.compute_at(source, block)
    primitives.parallel_if_worth(sch, shared, work)
    for following in (*chain, source):
        vectors(sch, following, machine)
    return block


def multiply(sch: Schedule, sums: SBlockRV, machine: Machine, loops: int = 1) -> None:
    """Unroll a tile of sums inside some ``loops`` of steps, and add to a vector of them with the CPU's instructions."""
    *around, row, vector, lane, _ = sch.get_loops(sums)
    sch.unroll(row)
    sch.unroll(vector)
    zeros = sch.decompose_reduction(sums, around[-loops])
    primitives.vectorize_and_unroll(sch, zeros, below=len(around) - loops, lanes=machine.lanes)
    tensorize(sch, lane, machine, dot_product(machine), BYTES, full=True)


def vectors(sch: Schedule, block: SBlockRV, machine: Machine) -> None:
    """Turn a block's rows into vectors where they fill them, and the reduction of a row into one of lanes."""
    if primitives.is_reduction(sch, block):
        first = sch.get_loops(block)[-2]
        sch.decompose_reduction(block, first)
        reduce_in_lanes(sch, first, machine)
    else:
        primitives.vectorize_where_filled(sch, block, machine.lanes)
