"""Operators on small matrices, and on complex numbers, which are pairs in the last axis.

Source: ONNX Runtime's ContribOperators.md.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto

from forge_pipeline.ir.contrib.emitter import Emitter
from forge_pipeline.ir.contrib.writer import Unusual, Writer

LARGEST = 16
"""Rows of the largest matrix that is inverted: every row is some fifteen nodes."""


def _inverse(writer: Writer, node: NodeProto) -> None:
    """Inverse (X): Gauss and Jordan's elimination with the largest pivot of each column, beside a matrix of ones.

    Source: Golub and Van Loan, "Matrix Computations", 3.4. Half precision is inverted in 32 bits.
    """
    op = Emitter(writer, node)
    x = op.input(0)
    size = op.size(x, -1) or op.size(x, -2)
    if size is None or size > LARGEST:
        raise Unusual(f"matrices of {size or 'an unknown number of'} rows")
    kind = op.kind(x)
    wide = x if kind == TensorProto.DOUBLE else op.cast(x, TensorProto.FLOAT)
    matrix = op.reshape(wide, -1, size, size)
    ones = op.constant(np.eye(size, dtype=np.float64 if kind == TensorProto.DOUBLE else np.float32)[None])
    beside = op("Add", op("Mul", matrix, op.number(0.0, matrix)), ones)
    matrix = op.concat(matrix, beside, axis=2)
    for row in range(size):
        matrix = _eliminated(op, matrix, row, size)
    found = op.cast(op("Reshape", op.part(matrix, size, 2 * size, 2), op("Shape", x)), kind)
    op.give(0, found)


def _eliminated(op: Emitter, matrix: str, row: int, size: int) -> str:
    """Return matrices (n, size, 2 size) with the column ``row`` cleared but for a one at its place."""
    places = np.arange(size)[None, :, None]
    column = op("Abs", op.part(matrix, row, row + 1, 2))
    allowed = op("Where", op.constant(places >= row), column, op.number(-1.0, matrix))
    pivot = op("ArgMax", allowed, axis=1, keepdims=1)
    every = op.constant(places)
    order = op("Where", op("Equal", every, pivot), op.index(row), every)
    order = op("Where", op.constant(places == row), pivot, order)
    wide = op("Expand", order, op.integers(1, 1, 2 * size))
    swapped = op("GatherElements", matrix, wide, axis=1)
    first = op.part(swapped, row, row + 1, 1)
    first = op("Div", first, op.part(first, row, row + 1, 2))
    factors = op.part(swapped, row, row + 1, 2)
    return op("Where", op.constant(places == row), first, op("Sub", swapped, op("Mul", factors, first)))


def _complex_product(writer: Writer, node: NodeProto) -> None:
    """ComplexMul (A, B), and ComplexMulConj, which takes B's conjugate."""
    op = Emitter(writer, node)
    (a, b), (c, d) = (op.split(op.input(place), (1, 1)) for place in (0, 1))
    is_conjugate = node.op_type == "ComplexMulConj"
    real = op("Add" if is_conjugate else "Sub", op("Mul", a, c), op("Mul", b, d))
    imaginary = op("Sub" if is_conjugate else "Add", op("Mul", b, c), op("Mul", a, d))
    op.give(0, op.concat(real, imaginary, axis=-1))


RULES = {"ComplexMul": _complex_product, "ComplexMulConj": _complex_product, "Inverse": _inverse}
"""How to write out each operator of com.microsoft."""
