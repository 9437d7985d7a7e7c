"""Products of two activations in bytes, in batches, and the softmax of their rows: attention.

They are deferred, up to a softmax and to the QuantizeLinear behind it; ``attention_kernel`` has the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from forge_pipeline.codegen.float32.products.attention import PANEL_VECTORS, fill
from forge_pipeline.codegen.int8.isa.dot_product import SIGN_BIT
from forge_pipeline.codegen.int8.isa.table import dot_product, has_dot_product
from forge_pipeline.codegen.int8.ops import attention, attention_kernel, panels
from forge_pipeline.codegen.int8.ops.attention_kernel import BatchedProduct, Step
from forge_pipeline.codegen.int8.ops.matmul import VECTORS, choose_tile
from forge_pipeline.codegen.int8.ops.panels import Operand
from forge_pipeline.codegen.layout.affine import LEVELS, Affine, Clip
from forge_pipeline.codegen.layout.builder import Extent, Graph, Value, has_known_shape, is_spread, same_shape, shape_of
from forge_pipeline.codegen.layout.quantized_values import DeferredKernel, Dequantized, deferred_result
from forge_pipeline.codegen.layout.rearranged import rearranged
from forge_pipeline.codegen.tir.machine import Machine

ROW_BLOCK_BYTES = 1 << 16
"""Scores of a row block, in bytes, up to which a softmax is computed with the product: they are on the stack."""
FEWEST_ROWS = 4
"""Of a row block, if there are as many: fewer would read the other operand more often than it pays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batched(BatchedProduct, DeferredKernel):
    """A product of bytes, deferred. ``shares``: the left operand, where it is a softmax that nobody else reads."""

    sources: tuple[Value, Value]
    shares: Shares | None = None

    @property
    def is_shares(self) -> bool:
        """Whether its rows' softmax is taken."""
        return self.softmax

    def without_nan(self, call: relax.Call) -> Value:
        """Return the shares, zero where they are no numbers."""
        return Value(deferred=replace(self, zero_for_nan=True))

    def quantized(self, graph: Graph, affine: Affine) -> Value:
        """Emit it in uint8; a softmax not before it is known what reads it."""
        return Value(deferred=Shares(product=self, affine=affine)) if self.softmax else self._emit(graph, affine)

    def _emit(self, graph: Graph, affine: Affine | None) -> Value:
        if self.shares is not None:
            return _attend(graph, self.shares, self, affine)
        mr, nr = tile_of(graph.machine, self)
        first = _operands(graph, self, nr)
        tiles = graph.kernel(
            attention_kernel.by_row_blocks, first.left, first.packed, *first.terms.values(), *first.others,
            name="softmax_u8" if self.softmax else "matmul_u8", product=first.product, operand=first.operand,
            affine=affine, names=list(first.terms), mr=mr, dot=dot_product(graph.machine), machine=graph.machine,
        )  # fmt: skip
        return Value(plain=graph.kernel(attention_kernel.crop, tiles, name="crop", shape=self.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The softmax of a product in bytes, which a product by values may take in."""

    product: Batched
    affine: Affine

    def emit(self, graph: Graph) -> Value:
        """Emit it."""
        return self.product._emit(graph, self.affine)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operands:
    """What a product's kernel reads: ``terms`` of its sums by name, ``others`` of what is done to them."""

    product: BatchedProduct
    left: relax.Expr
    operand: Operand
    packed: relax.Expr
    terms: dict[str, relax.Expr]
    others: list[relax.Expr]


def _operands(graph: Graph, made: Batched, vectors: int) -> _Operands:
    """Emit what a product reads, its right operand in panels of some ``vectors``."""
    zeros, product = _zeros(graph.machine, made), _bare(made)
    left, operand = _operand(graph, made.sources[0], made.batches, made.shape[-2], made.depth)
    packed, terms = _packed(graph, made, vectors, -(-made.depth // dot_product(graph.machine).k_inner))
    if zeros[1]:
        terms["row"] = graph.kernel(
            panels.row_terms, left, name="rows_u8", operand=operand, zeros=(made.zeros[0], zeros[1])
        )
    others = _others(graph, made, vectors * graph.machine.lanes)
    return _Operands(product=product, left=left, operand=operand, packed=packed, terms=terms, others=others)


def _bare(made: Batched) -> Batched:
    """Return what a kernel has to know of a product."""
    return replace(made, sources=(Value(), Value()), shares=None)


def _operand(
    graph: Graph, source: Value, batches: tuple[Extent, ...], rows: Extent, columns: Extent
) -> tuple[relax.Expr, Operand]:
    """Return what is read of a side of a product, and how."""
    read, place = rearranged(graph, graph.plain(source), (*batches, rows, columns))
    return read, Operand(place=place, rows=rows, columns=columns, batches=batches)


def _packed(graph: Graph, made: Batched, vectors: int, groups: Any) -> tuple[relax.Expr, dict[str, relax.Expr]]:
    """Emit the right operand in panels, and the terms of its columns where there are any."""
    dot, zero = dot_product(graph.machine), _zeros(graph.machine, made)[0]
    right, operand = _operand(graph, made.sources[1], made.batches, made.depth, made.shape[-1])
    packed = graph.kernel(
        panels.pack, right, name="pack_u8", operand=operand, groups=groups,
        width=vectors * graph.machine.lanes, k_inner=dot.k_inner,
    )  # fmt: skip
    if not zero or dot.widens:
        return packed, {}
    return packed, {"column": graph.kernel(panels.column_terms, packed, name="columns_s8", zero=zero)}


def _others(graph: Graph, made: Batched, width: int) -> list[relax.Expr]:
    """Return the tensors that are added to a product, with as many axes, and columns that fill panels of ``width``."""
    found = []
    for value in (step.tensor for step in made.steps if step.tensor is not None):
        if value.constant is not None:
            array = value.constant.reshape((1,) * (len(made.shape) - value.constant.ndim) + value.constant.shape)
            margin = -array.shape[-1] % width if array.shape[-1] > 1 else 0
            found.append(graph.constant(np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, margin)])))
            continue
        own = graph.plain(value)
        shape = shape_of(own)
        missing = list(range(len(made.shape) - len(shape)))
        term = graph.emit(relax.op.expand_dims(own, missing)) if missing else own
        is_filled = not shape or (isinstance(shape[-1], int) and (shape[-1] == 1 or shape[-1] % width == 0))
        found.append(term if is_filled else graph.kernel(fill, term, name="fill", width=width))
    return found


def _zeros(machine: Machine, product: BatchedProduct) -> tuple[int, int]:
    """Return what is left of zero points behind what is taken from the bytes anyway."""
    return product.zeros[0] - dot_product(machine).activation_offset, product.zeros[1] - SIGN_BIT


def _attend(graph: Graph, shares: Shares, made: Batched, affine: Affine | None) -> Value:
    """Emit a softmax and the product of its shares by values in one kernel."""
    machine, dot = graph.machine, dot_product(graph.machine)
    mr, nr = tile_of(machine, shares.product)
    first = _operands(graph, shares.product, nr)
    columns = -(-made.shape[-1] // machine.lanes)
    vectors = max(count for count in range(1, VECTORS + 1) if count == 1 or dot.fits(machine, mr, count))
    width = min(columns, vectors) * machine.lanes
    steps = shares.product.shape[-1]
    count = panels.quotient_of(steps, nr * machine.lanes)
    made = replace(made, depth=steps)  # by one name for it
    values, terms = _packed(graph, made, width // machine.lanes, count * (nr * machine.lanes // dot.k_inner))
    others = _others(graph, made, width)
    second = attention.Second(
        product=_bare(made), shares=shares.affine, zero=_zeros(machine, made)[1], affine=affine, names=list(terms),
        others=len(others),
    )  # fmt: skip
    tiles = graph.kernel(
        attention.attend, steps if isinstance(steps, int) else relax.ShapeExpr([steps]), first.left, first.packed,
        values, *first.terms.values(), *first.others,
        *terms.values(), *others, name="attention_u8", product=first.product, operand=first.operand, second=second,
        names=list(first.terms), mr=mr, dot=dot, machine=machine,
    )  # fmt: skip
    return Value(plain=graph.kernel(attention_kernel.crop, tiles, name="crop", shape=made.shape))


def multiply(graph: Graph, call: relax.Call) -> Value | None:
    """Take the product of two dequantized values of one number of axes, whose leading ones are the same."""
    left, right = (graph.look(argument) for argument in call.args)
    if not has_dot_product(graph.machine) or not isinstance(left, Dequantized) or not isinstance(right, Dequantized):
        return None
    if not all(has_known_shape(argument, symbolic_axes=range(8)) for argument in call.args):
        return None
    shapes = [shape_of(argument) for argument in call.args]
    if len(shapes[0]) < 2 or not same_shape(shapes[0][:-2], shapes[1][:-2]) or 0 in (*shapes[0], *shapes[1]):
        return None
    depth, shares = shapes[0][-1], shares_of(graph, call.args[0])
    if not isinstance(shapes[1][-1], int):
        shares = None
    if shares is None and not isinstance(depth, int):
        return None
    if isinstance(depth, int) and depth * LEVELS * LEVELS >= 1 << 31:
        return None  # shares of an open number add up to one
    product = Batched(
        sources=(left.source, right.source),
        shares=shares,
        zeros=(left.affine.zero, right.affine.zero),
        scale=float(np.float32(left.affine.scale) * np.float32(right.affine.scale)),
        depth=depth,
        shape=shape_of(call),
    )
    return Value(deferred=product)


def shares_of(graph: Graph, left: relax.Expr) -> Shares | None:
    """Return the softmax that a left operand is, if this is all that it is read for."""
    value = graph.look(left)
    shares = value.source.deferred if isinstance(value, Dequantized) else None
    return shares if isinstance(shares, Shares) and graph.is_used_once(left) else None


def scale(graph: Graph, call: relax.Call) -> Value | None:
    """Multiply or divide a deferred product by a number, in registers, or add a mask to it."""
    for place, (image, other) in enumerate(zip(call.args, reversed(call.args), strict=True)):
        deferred = deferred_result(graph, image)
        if not isinstance(deferred, Batched) or deferred.softmax or deferred.clip != Clip():
            continue
        if place and call.op.name == "relax.divide":
            continue
        term, kind = graph.look(other), call.op.name
        number = term.constant
        if number is not None and number.size == 1 and number.ndim <= len(deferred.shape):
            step = Step(kind=kind, constant=float(number.item()))
        elif kind == "relax.add" and _fits(other, deferred.shape):
            step = Step(kind=kind, tensor=term)
        else:
            continue
        if str(other.ty.dtype) == "float32":
            return Value(deferred=replace(deferred, steps=(*deferred.steps, step)))
    return None


def _fits(term: relax.Expr, shape: tuple[Extent, ...]) -> bool:
    """Return whether a tensor is broadcast over ``shape``."""
    if not has_known_shape(term, symbolic_axes=range(8)):
        return False
    own = shape_of(term)
    return is_spread((1,) * (len(shape) - len(own)) + own, shape)


def softmax(graph: Graph, call: relax.Call) -> Value | None:
    """Defer the softmax of a product's rows with it, where a row block of scores is small."""
    deferred = deferred_result(graph, call.args[0])
    if not isinstance(deferred, Batched) or deferred.softmax or deferred.shares or deferred.clip != Clip():
        return None
    if int(call.attrs.axis) % len(deferred.shape) != len(deferred.shape) - 1:
        return None
    following = replace(deferred, softmax=True)
    rows = following.shape[-2]
    fewest = min(FEWEST_ROWS, rows) if isinstance(rows, int) else FEWEST_ROWS
    return Value(deferred=following) if tile_of(graph.machine, following)[0] >= fewest else None


def tile_of(machine: Machine, product: Batched) -> tuple[int, int]:
    """Return rows and vectors of a tile: of no more rows than a row block of scores has, where these are kept."""
    rows, columns = product.shape[-2:]
    vectors = -(-columns // machine.lanes) if isinstance(columns, int) else PANEL_VECTORS
    groups, least = -(-product.depth // dot_product(machine).k_inner), FEWEST_ROWS if product.softmax else 1
    mr, nr = choose_tile(machine, rows, vectors, groups, least)
    if not product.softmax or not isinstance(columns, int):
        return mr, nr
    return min(mr, ROW_BLOCK_BYTES // (8 * -(-vectors // nr) * nr * machine.lanes)), nr


HANDLERS = {
    "relax.matmul": multiply,
    "relax.nn.softmax": softmax,
    **dict.fromkeys(("relax.add", "relax.multiply", "relax.divide"), scale),
}
