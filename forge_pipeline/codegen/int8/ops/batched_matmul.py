"""Products of two activations in bytes, in batches, and the softmax of their rows: attention.

They are deferred, up to a softmax and to the QuantizeLinear behind it; ``attention_kernel`` has the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from tvm import relax

from forge_pipeline.codegen.int8.isa.dot_product import SIGN_BIT
from forge_pipeline.codegen.int8.isa.table import dot_product, has_dot_product
from forge_pipeline.codegen.int8.ops import attention_kernel
from forge_pipeline.codegen.int8.ops.attention_kernel import BatchedProduct, Step
from forge_pipeline.codegen.int8.ops.matmul import choose_tile
from forge_pipeline.codegen.layout.affine import LEVELS, Affine, Clip
from forge_pipeline.codegen.layout.builder import Graph, Value, shape_of
from forge_pipeline.codegen.layout.quantized_values import DeferredKernel, Dequantized, deferred_result
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine

ROW_BLOCK_BYTES = 1 << 16
"""Scores of a row block, in bytes, up to which a softmax is computed with the product: they are on the stack."""
FEWEST_ROWS = 4
"""Of a row block: fewer would read the other operand more often than it pays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batched(BatchedProduct, DeferredKernel):
    """A product of bytes, (batch, rows, depth) and (batch, depth, columns), deferred."""

    sources: tuple[Value, Value]

    def _emit(self, graph: Graph, affine: Affine | None) -> Value:
        (rows, columns), leading = self.shape[-2:], self.leading
        dot, lanes = dot_product(graph.machine), graph.machine.lanes
        mr, nr = tile_of(graph.machine, self)
        left, right = _match_joined_heads(graph, graph.plain(self.sources[0])), graph.plain(self.sources[1])
        product = replace(self, sources=(Value(), Value()), joined=left is not None)
        if left is None:
            left = _reshape(graph, graph.plain(self.sources[0]), (*leading, rows, self.depth))
        right = _reshape(graph, right, (*leading, self.depth, columns))
        packed = graph.kernel(attention_kernel.pack, right, name="pack_u8", width=nr * lanes, k_inner=dot.k_inner)
        zeros = self.zeros[0] - dot.activation_offset, self.zeros[1] - SIGN_BIT
        terms = {}
        if zeros[0] and not dot.widens:
            terms["column"] = graph.kernel(attention_kernel.column_terms, packed, name="columns_s8", zero=zeros[0])
        if zeros[1]:
            terms["row"] = graph.kernel(
                attention_kernel.row_terms, left, name="rows_u8", product=product, zero=zeros[1]
            )
        names, tensors = list(terms), list(terms.values())
        for term in (step.tensor for step in self.steps if step.tensor is not None):
            shape = (1, 1, *shape_of(graph.plain(term)))
            tensors.append(_reshape(graph, graph.plain(term), (primitives.product(shape[:-2]), *shape[-2:])))
        result = graph.kernel(
            attention_kernel.by_row_blocks, left, packed, *tensors, name="softmax_u8" if self.softmax else "matmul_u8",
            product=product, affine=affine, names=names, mr=mr, dot=dot, machine=graph.machine,
        )  # fmt: skip
        if len(leading) + 2 != len(self.shape):
            result = graph.emit(relax.op.reshape(result, self.shape))
        return Value(plain=result)


def _match_joined_heads(graph: Graph, plain: relax.Expr) -> relax.Expr | None:
    """Return (1, rows, heads * depth), where ``plain`` is it after a reshape and a transposition that nobody needs."""
    made = []
    for operator in ("relax.permute_dims", "relax.reshape"):
        call = graph.builder.lookup_binding(plain) if isinstance(plain, relax.Var) else None
        if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != operator:
            return None
        made.append(call)
        plain = call.args[0]
    axes = made[0].attrs.axes
    if axes is None or tuple(int(axis) for axis in axes) != (0, 2, 1, 3):
        return None
    batch, rows, heads, depth = shape_of(made[0].args[0])
    return plain if shape_of(plain) == (1, rows, heads * depth) and batch == 1 else None


def _reshape(graph: Graph, plain: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    return plain if shape_of(plain) == shape else graph.emit(relax.op.reshape(plain, shape))


def multiply(graph: Graph, call: relax.Call) -> Value | None:
    """Take the product of two dequantized values of one number of axes, whose leading ones are the same."""
    left, right = (graph.look(argument) for argument in call.args)
    if not has_dot_product(graph.machine) or not isinstance(left, Dequantized) or not isinstance(right, Dequantized):
        return None
    shapes = [shape_of(argument) for argument in call.args]
    if not all(isinstance(extent, int) and extent > 0 for shape in shapes for extent in shape):
        return None
    if len(shapes[0]) < 2 or shapes[0][:-2] != shapes[1][:-2] or len(shapes[0]) != len(shapes[1]):
        return None
    if shapes[0][-1] * LEVELS * LEVELS >= 1 << 31:
        return None
    product = Batched(
        sources=(left.source, right.source),
        zeros=(left.affine.zero, right.affine.zero),
        scale=float(np.float32(left.affine.scale) * np.float32(right.affine.scale)),
        depth=shapes[0][-1],
        shape=shape_of(call),
    )
    return Value(deferred=product)


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


def _fits(term: relax.Expr, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor is broadcast over ``shape`` without being spread over only a part of the batch."""
    own = shape_of(term)
    own = (1,) * (len(shape) - len(own)) + own
    if len(own) != len(shape) or any(one not in (1, other) for one, other in zip(own, shape, strict=True)):
        return False
    return own[:-2] == shape[:-2] or primitives.product(own[:-2]) == 1


def softmax(graph: Graph, call: relax.Call) -> Value | None:
    """Defer the softmax of a product's rows with it, where a row block of scores is small."""
    deferred = deferred_result(graph, call.args[0])
    if not isinstance(deferred, Batched) or deferred.softmax or deferred.clip != Clip():
        return None
    if int(call.attrs.axis) % len(deferred.shape) != len(deferred.shape) - 1:
        return None
    following = replace(deferred, softmax=True)
    return Value(deferred=following) if tile_of(graph.machine, following)[0] >= FEWEST_ROWS else None


def tile_of(machine: Machine, product: Batched) -> tuple[int, int]:
    """Return rows and vectors of a tile: of no more rows than a row block of scores has, where these are kept."""
    rows, columns = product.shape[-2:]
    vectors = -(-columns // machine.lanes)
    mr, nr = choose_tile(machine, rows, vectors, -(-product.depth // dot_product(machine).k_inner))
    kept = ROW_BLOCK_BYTES // (8 * -(-vectors // nr) * nr * machine.lanes)
    return min(mr, kept) if product.softmax else mr, nr


HANDLERS = {
    "relax.matmul": multiply,
    "relax.nn.softmax": softmax,
    **dict.fromkeys(("relax.add", "relax.multiply", "relax.divide"), scale),
}
