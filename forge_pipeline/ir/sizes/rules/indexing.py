"""Operators that pick elements by position, or count them: Gather and its kin, NonZero, TopK, OneHot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from onnx import TensorProto

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.operation import Operation, Rule, needed
from forge_pipeline.ir.sizes.rules.shapes import numbers
from forge_pipeline.ir.sizes.value import MOST, Known


def gather(op: Operation) -> Sequence[Known]:
    """Pick slices along an axis."""
    given, indices = op.input(0), op.input(1)
    shape, taken = needed(given.shape), needed(indices.shape)
    axis = op.axis(0, len(shape))
    result = (*shape[:axis], *taken, *shape[axis + 1 :])
    if given.contents is None or indices.constant is None or indices.constant.size > MOST:
        return [Known(given.dtype, result)]
    try:
        contents = np.take(given.contents, indices.constant.astype(np.int64), axis)
    except IndexError:
        return [Known(given.dtype, result)]
    found = np.empty(numbers(result) or (), object)
    found[...] = contents
    return [Known(given.dtype, result, found if found.size <= MOST else None)]


def gather_elements(op: Operation) -> Sequence[Known]:
    """Pick elements along an axis, as many as there are indices."""
    given, indices = op.input(0), op.input(1)
    contents = None
    if given.contents is not None and indices.constant is not None and given.shape:
        positions = indices.constant.astype(np.int64)
        contents = np.take_along_axis(given.contents, positions, op.axis(0, len(given.shape)))
    return [Known(given.dtype, indices.shape, contents)]


def gather_nd(op: Operation) -> Sequence[Known]:
    """Pick slices by tuples of positions."""
    given = op.input(0)
    shape, indices = needed(given.shape), needed(op.shape(1))
    batch, depth = int(op.attribute("batch_dims", 0)), indices[-1]
    if not isinstance(depth, int):
        return [Known(given.dtype, None)]
    result = (*indices[:-1], *shape[batch + depth :])
    positions = op.input(1).constant
    if given.contents is None or positions is None or batch:
        return [Known(given.dtype, result)]
    found = np.empty(positions.shape[:-1] + given.contents.shape[depth:], object)
    for place in np.ndindex(*positions.shape[:-1]):
        found[place] = given.contents[tuple(int(entry) for entry in positions[place])]
    return [Known(given.dtype, result, found)]


def nonzero(op: Operation) -> Sequence[Known]:
    """Positions of what is not 0: as many as data says, at most all."""
    given = op.input(0)
    if given.constant is not None:
        found = np.array(np.nonzero(given.constant), np.int64)
        return [Known(TensorProto.INT64, tuple(found.shape), constant=found)]
    if given.shape is None:
        return [Known(TensorProto.INT64, (op.fresh("rank"), op.fresh("count")))]
    return [Known(TensorProto.INT64, (max(len(given.shape), 1), op.fresh("", e.product(given.shape))))]


def top_k(op: Operation) -> Sequence[Known]:
    """The largest or smallest along an axis."""
    given, shape = op.input(0), list(needed(op.shape(0)))
    axis = op.axis(-1, len(shape))
    sizes = op.sizes("k", 1)
    shape[axis] = sizes[0] if sizes else op.fresh("", shape[axis])
    return [Known(given.dtype, tuple(shape)), Known(TensorProto.INT64, tuple(shape))]


def one_hot(op: Operation) -> Sequence[Known]:
    """A new axis with one entry set."""
    shape, depth = list(needed(op.shape(0))), op.sizes("", 1)
    axis = op.axis(-1, len(shape) + 1)
    shape.insert(axis, depth[0] if depth else op.fresh("depth"))
    return [Known(op.input(2).dtype, tuple(shape))]


def compress(op: Operation) -> Sequence[Known]:
    """Take what a mask says, along an axis or of all elements."""
    given, shape = op.input(0), needed(op.shape(0))
    axis = op.attribute("axis")
    mask = op.constant(1)
    count = None if mask is None else int(np.count_nonzero(mask))
    if axis is None:
        return [Known(given.dtype, (op.fresh("", e.product(shape)) if count is None else count,))]
    axis = axis % len(shape)
    size = op.fresh("", shape[axis]) if count is None else count
    return [Known(given.dtype, (*shape[:axis], size, *shape[axis + 1 :]))]


def unique(op: Operation) -> Sequence[Known]:
    """Distinct elements or slices, where they are, and how often."""
    given, shape = op.input(0), needed(op.shape(0))
    axis = op.attribute("axis")
    whole = e.product(shape) if axis is None else shape[axis]
    count = op.fresh("", whole)
    result = (count,) if axis is None else (*shape[: axis % len(shape)], count, *shape[axis % len(shape) + 1 :])
    positions = Known(TensorProto.INT64, (count,))
    return [Known(given.dtype, result), positions, Known(TensorProto.INT64, (whole,)), positions]


def non_max_suppression(op: Operation) -> Sequence[Known]:
    """Boxes that are kept: rows of batch, class and box."""
    boxes, scores = op.shape(0), op.shape(1)
    high = None
    if boxes is not None and scores is not None:
        most = op.sizes("", 2)
        each = e.minimum(boxes[1], most[0]) if most else (0 if not op.has(2) else boxes[1])
        high = scores[0] * scores[1] * each
    return [Known(TensorProto.INT64, (op.fresh("", high), 3))]


RULES: Final[Mapping[str, Rule]] = {
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "NonZero": nonzero,
    "TopK": top_k,
    "OneHot": one_hot,
    "Compress": compress,
    "Unique": unique,
    "NonMaxSuppression": non_max_suppression,
}
