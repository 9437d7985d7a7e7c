"""TensorFlow Lite's operators that pick, place, sort and count by index, each as ONNX."""

from __future__ import annotations

import numpy as np

from forge_pipeline.frontends.tflite.builder import Builder, onnx_type, option, unsupported
from forge_pipeline.frontends.tflite.model import Operator
from forge_pipeline.frontends.tflite.operators.data_movement import read, write


def gather(b: Builder, op: Operator) -> None:
    """GATHER along one axis; leading dimensions that both operands have may be a batch."""
    rank, axis = b.rank(op.inputs[0]), int(option(op, "Axis", 0))
    batch = int(option(op, "BatchDims", 0)) % max(1, b.rank(op.inputs[1]))
    values, picks = read(b, op, op.inputs[0]), b.int64(op.inputs[1])
    if not batch:
        write(b, op, b.node("Gather", [values, picks], axis=axis))
        return
    axis %= rank
    between = list(range(batch, axis))  # which come between the batch and the picked axis
    if between:
        order = [*range(batch), axis, *between, *range(axis + 1, rank)]
        values = b.node("Transpose", [values], perm=order)
    picks = b.node("Unsqueeze", [picks, b.integers(-1)])
    name = b.node("GatherND", [values, picks], batch_dims=batch)
    if between:
        inner = b.rank(op.inputs[1]) - batch
        order = [*range(batch), *(batch + inner + place for place in range(len(between)))]
        order += range(batch, batch + inner)
        order += range(batch + inner + len(between), b.rank(op.outputs[0]))
        name = b.node("Transpose", [name], perm=order)
    write(b, op, name)


def gather_nd(b: Builder, op: Operator) -> None:
    """GATHER_ND."""
    write(b, op, b.node("GatherND", [read(b, op, op.inputs[0]), b.int64(op.inputs[1])]))


def scatter_nd(b: Builder, op: Operator) -> None:
    """SCATTER_ND: indices, updates, shape; what is placed twice is added."""
    index, updates, shape = op.inputs
    dtype = np.dtype(b.tensor(updates).dtype)
    flags = dtype == np.dtype(bool)
    value, kind = b.stored(updates), np.dtype("int32") if flags else dtype
    if flags:
        value = b.node("Cast", [value], to=onnx_type("int32"))
    zeros = b.node("Expand", [b.constant(kind.type(0)), b.int64(shape)])
    name = b.node("ScatterND", [zeros, b.int64(index), value], reduction="add")
    b.give(op.outputs[0], b.node("Cast", [name], to=onnx_type("bool")) if flags else name)


def sparse_to_dense(b: Builder, op: Operator) -> None:
    """SPARSE_TO_DENSE: indices (of rank 2, 1 or 0), shape, values (one or one for each index), value elsewhere."""
    index, shape, values, default = op.inputs
    places, rank = b.int64(index), b.rank(index)
    target = b.node("Expand", [b.stored(default), b.int64(shape)])
    places = b.node("Reshape", [places, b.integers(-1, 1)]) if rank < 2 else places
    count = b.node("Shape", [places], end=1)
    name = b.node("ScatterND", [target, places, b.node("Expand", [b.stored(values), count])])
    b.give(op.outputs[0], name)


def one_hot(b: Builder, op: Operator) -> None:
    """ONE_HOT: a number outside of the range has none, while ONNX counts negative ones from the end."""
    index, depth, on, off = op.inputs
    rank, axis = b.rank(index), int(option(op, "Axis", -1))
    axis = rank if axis < 0 else axis
    scalar = b.constant(np.zeros(0, np.int64))
    count = b.node("Reshape", [b.int64(depth), scalar])
    steps = b.node("Range", [b.constant(np.int64(0)), count, b.constant(np.int64(1))])
    if rank > axis:
        steps = b.node("Unsqueeze", [steps, b.integers(*range(1, rank - axis + 1))])
    hit = b.node("Equal", [b.node("Unsqueeze", [b.int64(index), b.integers(axis)]), steps])
    values = [b.node("Reshape", [b.stored(value), scalar]) for value in (on, off)]
    b.give(op.outputs[0], b.node("Where", [hit, *values]))


def largest(b: Builder, op: Operator) -> None:
    """TOPK_V2 along the last axis: of equal ones the first comes first, in ONNX too."""
    count = b.node("Reshape", [b.int64(op.inputs[1]), b.integers(1)])
    name = b.node("TopK", [b.real(op.inputs[0]), count], 2)
    b.put(op.outputs[0], name)
    b.give(op.outputs[1], b.cast(f"{name}_1", b.tensor(op.outputs[1]).dtype))


def where(b: Builder, op: Operator) -> None:
    """WHERE: the places of what is not zero, one in a row."""
    name = b.node("Transpose", [b.node("NonZero", [b.stored(op.inputs[0])])], perm=[1, 0])
    b.give(op.outputs[0], b.cast(name, b.tensor(op.outputs[0]).dtype))


def unique(b: Builder, op: Operator) -> None:
    """UNIQUE: in the order in which they come, and for each number which of them it is.

    Integers are made 64 bits wide, of which ONNX Runtime has the operator.
    """
    dtype = b.tensor(op.inputs[0]).dtype
    is_real = np.issubdtype(np.dtype(dtype), np.floating)
    name = b.node("Unique", [b.stored(op.inputs[0]) if is_real else b.int64(op.inputs[0])], 3, sorted=0)
    b.give(op.outputs[0], name if is_real else b.cast(name, dtype))
    b.give(op.outputs[1], b.cast(f"{name}_2", b.tensor(op.outputs[1]).dtype))


def reverse_sequence(b: Builder, op: Operator) -> None:
    """REVERSE_SEQUENCE: the first steps of each sample; ONNX has time and batch among the first two axes."""
    rank = b.rank(op.inputs[0])
    time, batch = (int(option(op, name, 0)) % rank for name in ("SeqDim", "BatchDim"))
    order = [time, batch, *(axis for axis in range(rank) if axis not in (time, batch))]
    turned = order != list(range(rank))
    name = read(b, op, op.inputs[0])
    name = b.node("Transpose", [name], perm=order) if turned else name
    name = b.node("ReverseSequence", [name, b.int64(op.inputs[1])], time_axis=0, batch_axis=1)
    if turned:
        name = b.node("Transpose", [name], perm=[order.index(axis) for axis in range(rank)])
    write(b, op, name)


def _extents(b: Builder, index: int) -> tuple[int, int]:
    rows, columns = b.shape(index)[-2:]
    if rows is None or columns is None:
        raise unsupported("a matrix of open size", "a matrix of fixed size")
    return rows, columns


def diagonal(b: Builder, op: Operator) -> None:
    """MATRIX_DIAG: vectors as the diagonals of matrices of zeros."""
    on_it = b.constant(np.eye(*_extents(b, op.outputs[0]), dtype=bool))
    zero = b.constant(np.array(0, b.tensor(op.inputs[0]).dtype))
    values = b.node("Unsqueeze", [b.stored(op.inputs[0]), b.integers(-1)])
    b.give(op.outputs[0], b.node("Where", [on_it, values, zero]))


def set_diagonal(b: Builder, op: Operator) -> None:
    """MATRIX_SET_DIAG: the diagonals of matrices replaced."""
    rows, columns = _extents(b, op.inputs[0])
    on_it = b.constant(np.eye(rows, columns, dtype=bool))
    across = b.integers(-2 if columns <= rows else -1)  # along which the diagonal has a value for each place
    values = b.node("Unsqueeze", [b.stored(op.inputs[1]), across])
    b.give(op.outputs[0], b.node("Where", [on_it, values, b.stored(op.inputs[0])]))
