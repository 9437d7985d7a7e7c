"""Matrix products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from onnx import TensorProto

from forge_pipeline.ir.sizes.expression import Whole, is_one
from forge_pipeline.ir.sizes.operation import Operation, Rule, Unknown, needed
from forge_pipeline.ir.sizes.value import Known, Shape


def product_shape(op: Operation, left: Shape, right: Shape) -> Shape:
    """Return the shape of a product as numpy's matmul has it."""
    if not left or not right:
        raise Unknown
    a = (1, *left) if len(left) == 1 else left
    b = (*right, 1) if len(right) == 1 else right
    op.require_equal(a[-1], b[-2], "the inner extents differ")
    outer = op.broadcast(a[:-2], b[:-2])
    rows = () if len(left) == 1 else (op.context.resolve(a[-2]),)
    columns = () if len(right) == 1 else (op.context.resolve(b[-1]),)
    return (*outer, *rows, *columns)


def matmul(op: Operation) -> Sequence[Known]:
    """MatMul."""
    return [Known(op.input(0).dtype, product_shape(op, needed(op.shape(0)), needed(op.shape(1))))]


def matmul_integer(op: Operation) -> Sequence[Known]:
    """MatMulInteger: int32."""
    return [Known(TensorProto.INT32, product_shape(op, needed(op.shape(0)), needed(op.shape(1))))]


def qlinear_matmul(op: Operation) -> Sequence[Known]:
    """QLinearMatMul: the type of the result's zero point."""
    return [Known(op.input(7).dtype, product_shape(op, needed(op.shape(0)), needed(op.shape(3))))]


def gemm(op: Operation) -> Sequence[Known]:
    """Gemm, either side transposed."""
    left, right = needed(op.shape(0)), needed(op.shape(1))
    a = left[::-1] if op.attribute("transA", 0) else left
    b = right[::-1] if op.attribute("transB", 0) else right
    op.require_equal(a[1], b[0], "the inner extents differ")
    result: Shape = (op.context.resolve(a[0]), op.context.resolve(b[1]))
    if op.has(2) and op.shape(2) is not None:
        op.broadcast(result, needed(op.shape(2)))
    return [Known(op.input(0).dtype, tuple(op.context.resolve(size) for size in result))]


def einsum(op: Operation) -> Sequence[Known]:
    """Einsum: each letter is one extent, ``...`` broadcasts."""
    equation = str(op.attribute("equation")).replace(" ", "")
    given, arrow, wanted = equation.partition("->")
    sizes: dict[str, Whole] = {}
    rest: list[Shape] = []
    for term, index in zip(given.split(","), range(len(op.inputs)), strict=True):
        shape = needed(op.shape(index))
        letters = term.replace("...", "")
        free = len(shape) - len(letters)
        before = term.index("...") if "..." in term else len(letters)
        rest.append(shape[before : before + free])
        for letter, size in zip(letters, shape[:before] + shape[before + free :], strict=True):
            found = sizes.get(letter, 1)
            if is_one(found) or is_one(size):
                sizes[letter] = size if is_one(found) else found
            else:
                sizes[letter] = op.require_equal(found, size, f"index {letter} has two extents")
    outer = op.broadcast(*rest)
    if not arrow:
        counts = given.replace(",", "").replace("...", "")
        once = "".join(sorted(letter for letter in sizes if counts.count(letter) == 1))
        wanted = ("..." if "..." in given else "") + once
    before = wanted.index("...") if "..." in wanted else 0
    letters = wanted.replace("...", "")
    outer = outer if "..." in wanted else ()
    first = tuple(op.context.resolve(sizes[letter]) for letter in letters[:before])
    last = tuple(op.context.resolve(sizes[letter]) for letter in letters[before:])
    return [Known(op.input(0).dtype, (*first, *outer, *last))]


RULES: Final[Mapping[str, Rule]] = {
    "MatMul": matmul,
    "MatMulInteger": matmul_integer,
    "QLinearMatMul": qlinear_matmul,
    "Gemm": gemm,
    "Einsum": einsum,
}
