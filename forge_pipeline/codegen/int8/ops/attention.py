"""Attention of bytes: a block of rows' shares are multiplied by the values as they are made, and never written.

The scores and their softmax are those of ``attention_kernel``; the product behind them takes the block's shares from
the stack, with the sums of its rows where the values have a zero point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.int8.isa.dot_product import DotProduct, products
from forge_pipeline.codegen.int8.isa.table import dot_product
from forge_pipeline.codegen.int8.ops import attention_kernel
from forge_pipeline.codegen.int8.ops.attention_kernel import ATTENTION, CHAIN, BatchedProduct
from forge_pipeline.codegen.int8.ops.panels import Operand
from forge_pipeline.codegen.int8.requantize import to_float_if_needed
from forge_pipeline.codegen.layout.affine import Affine
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """The product of shares, stored as ``shares`` says, by values.

    ``zero`` is what is left of the values' zero point, ``affine`` how the result is stored. ``names`` are those of the
    terms of its sums, behind which ``others`` tensors are added to the product.
    """

    product: BatchedProduct
    shares: Affine
    zero: int
    affine: Affine | None
    names: Sequence[str]
    others: int


def attend(
    columns: Any, left: te.Tensor, keys: te.Tensor, values: te.Tensor, *terms: te.Tensor, product: BatchedProduct,
    operand: Operand, second: Second, names: Sequence[str], mr: int, dot: DotProduct, machine: Machine,
) -> te.Tensor:  # fmt: skip
    """Describe the shares of rows times packed keys, times packed values, in tiles for ``attention_kernel.crop``.

    ``columns`` is how many there are, in a list where that is open, as nothing else that is read or written tells it.
    ``terms`` are those of the first product's sums, by ``names``, and of the scores; then those of the second product.
    """
    known = columns if isinstance(columns, int) else columns[0]
    product = replace(product, shape=(*product.shape[:-1], known))
    count = len(terms) - len(second.names) - second.others
    first, its = terms[:count], dict(zip(second.names, terms[count:], strict=False))
    of_names = dict(zip(names, first, strict=False))
    exact = attention_kernel.exact_sums(left, keys, of_names, product, operand, mr, dot, ATTENTION)
    kept = second.shares.zero

    def widened(share: Any) -> Any:
        return share.astype("int16") - tirx.const(kept, "int16") if dot.widens else share

    shares = attention_kernel.shares_of(exact, first[len(names) :], product, second.shares, widened)
    *rows, panels, own = shares.shape
    inner, width = dot.k_inner, int(values.shape[-2])
    chunk = int(own) // inner
    each = te.reduce_axis((0, panels), "panel"), te.reduce_axis((0, int(own)), "column")
    mixed = te.compute(
        (*rows, values.shape[len(rows) - 2], width),
        lambda *at: te.sum(
            products(
                shares(*at[:-2], *each),
                values(*at[: len(rows) - 2], at[-2], each[0] * chunk + each[1] // inner, at[-1], each[1] % inner),
            ),
            axis=each,
        ),
        name="mixed",
    )
    added = attention_kernel.reduce_rows("added", shares, te.sum) if second.zero else None
    rest = tirx.const(0, "int32") if dot.widens or not kept else (panels * own * kept).astype("int32")
    epilogue = attention_kernel.epilogue_of(
        second.product, second.affine, terms[len(terms) - second.others :], fused=machine.fused
    )
    blocks = product.blocks(mr)

    def element(*at: Any) -> Any:
        *batch, block, row, panel, n = at
        total = mixed(*at)
        if "column" in its:
            total = total + its["column"](*batch, panel, n)
        if added is not None:
            total = total + (rest - added(*batch, block, row)) * second.zero
        return epilogue(total, *blocks.whole(batch), blocks.row(block, row), panel * width + n)

    return te.compute(mixed.shape, element, name=f"finish_{to_float_if_needed(second.affine)}")


def schedule(sch: Schedule, machine: Machine) -> None:
    """Compute all that a block of rows needs, one block after the other."""
    anchor = primitives.find(sch, ATTENTION)
    named = {str(sch.get(block).name_hint): block for block in primitives.blocks(sch)}
    finish = next(block for name, block in named.items() if name.startswith("finish"))
    chain = [named[name] for name in (*CHAIN, "added") if name in named]
    row_block = attention_kernel.hold_rows(sch, anchor, chain, machine)
    mixed = named["mixed"]
    sch.reverse_compute_at(mixed, row_block, preserve_unit_loops=True)
    m, panel, column, each, own = sch.get_loops(mixed)[-5:]
    k_outer, k_inner = sch.split(own, [None, dot_product(machine).k_inner])
    vector, lane = sch.split(column, [None, machine.lanes])
    sch.reorder(panel, each, k_outer, m, vector, lane, k_inner)
    done = sch.cache_write(mixed, 0, "local")
    sch.reverse_compute_at(done, panel)
    sch.reverse_compute_at(finish, row_block)
    for block in (done, finish):
        attention_kernel.vectors(sch, block, machine)
    attention_kernel.multiply(sch, anchor, machine)
    attention_kernel.multiply(sch, mixed, machine, loops=2)
