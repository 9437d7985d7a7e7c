"""Products of matrices on a GPU: of floats in tiles of shared memory, of halves by tensor cores, whose sums are floats.

TVM's own have a block of threads for a tile of the result, however many terms a result has: a sentence's few rows keep
a tenth of a GPU busy. As in convolutions the terms are parted where there are few tiles, and the parts added up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from tvm import relax, te, tirx, topi
from tvm.ir import Op

from forge_pipeline.codegen.gpu.products import SUMMED, Work, known, multiplied, parts_of, tile_of
from forge_pipeline.codegen.tir.broadcasting import broadcast, is_one, places

SQUARE: Final = 128
"""Rows and columns of a block of threads with tensor cores, in TVM's schedule."""
FEW: Final = 16
"""Rows that fill no tile."""
STEP: Final = 64
"""Terms that such a block reads at a time."""
FUSABLE: Final = {"op_pattern": 4}
"""Element-wise operators behind a kernel are fused into it."""


def matmuls(processors: int) -> dict[str, Any]:
    """Return how `LegalizeOps` lowers products of two matrices or of batches of them; those of one row as TVM does."""
    plain = Op.get("relax.matmul").get_attr("FLegalize")

    def lowered(builder: Any, call: relax.Call) -> relax.Expr:
        left, right = call.args
        shapes = [list(argument.ty.shape) for argument in call.args]
        forms = {str(argument.ty.dtype) for argument in call.args}
        is_matrix = min(map(len, shapes)) >= 2 and isinstance(shapes[0][-1], tirx.IntImm) and int(shapes[0][-1]) > 0
        if not is_matrix or len(forms) > 1 or not forms <= {"float32", "float16"} or is_one(shapes[0][-2]):
            return plain(builder, call)
        if not _is_whole(shapes[0][:-1]) and known(shapes[0][-2]) < FEW:
            return plain(builder, call)
        if forms == {"float32"}:
            return builder.call_te(
                lambda a, b: _in_tiles(a, b, processors), left, right, primfunc_name_hint="matmul",
                primfunc_attrs=FUSABLE,
            )  # fmt: skip
        return _of_halves(builder, left, right, processors, plain, str(call.ty.dtype))

    return {"relax.matmul": lowered}


def _in_tiles(left: te.Tensor, right: te.Tensor, processors: int) -> te.Tensor:
    """Describe (..., rows, terms) by (..., terms, columns) in float32; a batch by one matrix is one of more rows."""
    *before, rows, terms = left.shape
    columns = right.shape[-1]
    joined = len(right.shape) == 2 and _is_whole([*before, rows])
    outer = broadcast(before, list(right.shape[:-2]))
    height, batch = (math.prod([*before, rows]), 1) if joined else (rows, math.prod(outer))
    work = Work(batch=known(batch), rows=known(height), columns=known(columns), terms=int(terms))
    tile = tile_of(work, processors)

    def of_left(item: Any, number: Any, row: Any) -> Any:
        row = tirx.min(row, height - 1)
        place = _split(row, [*before, rows]) if joined else [*places(_split(item, outer), before), row]
        return left(*place, number)

    def of_right(item: Any, number: Any, column: Any) -> Any:
        return right(*places(_split(item, outer), right.shape[:-2]), number, tirx.min(column, columns - 1))

    sizes = (batch, int(terms), height, columns)
    return multiplied(
        of_left, of_right, sizes, tile, parts_of(work, tile, processors), (*outer, rows, columns),
        lambda *place: _joined(place, [*before, rows] if joined else outer, joined=joined),
    )  # fmt: skip


def _of_halves(builder: Any, left: Any, right: Any, processors: int, plain: Any, form: str) -> relax.Expr:
    """Emit a product of halves, whose sums are floats: TVM's kernel, of parts where there are few tiles."""
    *before, rows, terms = left.ty.shape
    columns = right.ty.shape[-1]
    parts = 1
    if len(right.ty.shape) == 2:
        blocks = -(-known(math.prod([*before, rows])) // SQUARE) * -(-known(columns) // SQUARE)
        fitting = [count for count in range(1, 33) if int(terms) % (count * STEP) == 0]
        parts = next((count for count in fitting if blocks * count >= processors), fitting[-1] if fitting else 1)
    if parts == 1:
        whole = builder.emit(plain(builder, builder.normalize(relax.op.matmul(left, right, out_dtype="float32"))))
        return builder.call_te(lambda sums: topi.cast(sums, form), whole, primfunc_name_hint="halves")
    own = int(terms) // parts

    def of_part(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        step = te.reduce_axis((0, own), name="term")
        shape = (parts, math.prod([*before, rows]), columns)

        def part_of(part: Any, row: Any, column: Any) -> Any:
            number = part * own + step
            factors = a(*_split(row, [*before, rows]), number), b(number, column)
            return te.sum(factors[0].astype("float32") * factors[1].astype("float32"), axis=step)

        return te.compute(shape, part_of, name="matmul")

    def of_parts(found: te.Tensor) -> te.Tensor:
        part = te.reduce_axis((0, parts), name="part")

        def whole(*place: Any) -> Any:
            return te.sum(found(part, _flat(place[:-1], [*before, rows]), place[-1]), axis=part)

        sums = te.compute((*before, rows, columns), whole, name=SUMMED)
        return te.compute(sums.shape, lambda *place: sums(*place).astype(form), name="halves")

    found = builder.emit(builder.call_te(of_part, left, right, primfunc_name_hint="matmul"))
    return builder.call_te(of_parts, found, primfunc_name_hint="summed", primfunc_attrs=FUSABLE)


def _joined(place: Sequence[Any], sizes: Sequence[Any], *, joined: bool) -> tuple[Any, Any, Any]:
    """Return item, row and column of a place in the result."""
    *outer, row, column = place
    return (0, _flat([*outer, row], sizes), column) if joined else (_flat(outer, sizes), row, column)


def _flat(place: Sequence[Any], sizes: Sequence[Any]) -> Any:
    number: Any = tirx.const(0, "int64")
    for index, size in zip(place, sizes, strict=True):
        number = number * size + index
    return number


def _split(number: Any, sizes: Sequence[Any]) -> list[Any]:
    """Return the indices along ``sizes`` of what has a number among all of them."""
    found: list[Any] = []
    for size in reversed(sizes[1:]):
        found.insert(0, number % size)
        number = number // size
    return [number, *found] if sizes else []


def _is_whole(sizes: Sequence[Any]) -> bool:
    """Return whether rows along several axes can be those of one matrix: TVM follows the product of known sizes."""
    open_sizes = [size for size in sizes if not isinstance(size, int | tirx.IntImm)]
    return not open_sizes or sum(not is_one(size) for size in sizes) == 1
