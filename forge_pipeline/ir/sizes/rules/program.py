"""Operators of our own (``ir.program_operators``)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from onnx import TensorProto

from forge_pipeline.ir import program_operators as own
from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.encoding import from_json
from forge_pipeline.ir.sizes.expression import Whole
from forge_pipeline.ir.sizes.operation import Operation, Rule, Unknown, needed
from forge_pipeline.ir.sizes.value import Known

INT64 = TensorProto.INT64


def extents(op: Operation) -> Sequence[Known]:
    """A tensor whose shape is read from data; where the sizes are known after all, they are."""
    known = op.input(0)
    if known.contents is not None:
        return [Known(TensorProto.UINT8, tuple(known.contents.reshape(-1).tolist()))]
    count = e.product(needed(known.shape))
    if not isinstance(count, int):
        raise Unknown
    return [Known(TensorProto.UINT8, tuple(op.fresh(str(axis)) for axis in range(count)))]


def prefix(op: Operation) -> Sequence[Known]:
    """The first entries of a tensor."""
    return [Known(op.input(0).dtype, (needed(op.shape(1))[0], *needed(op.shape(0))[1:]))]


def positions(op: Operation) -> Sequence[Known]:
    """Room for all places, and how many there are."""
    return [Known(INT64, (e.product(needed(op.shape(0))),)), Known(INT64, ())]


def unique(op: Operation) -> Sequence[Known]:
    """Room for as many as there are elements."""
    shape, axis = needed(op.shape(0)), op.attribute("axis")
    each = Known(INT64, (e.product(shape) if axis is None else shape[axis],))
    return [each, each, each, Known(INT64, ())]


def suppression(op: Operation) -> Sequence[Known]:
    """Room for all boxes of all classes, or for as many as may be kept of each."""
    batch, classes, boxes = needed(op.shape(1))
    most = op.input(2).contents
    kept: Whole = boxes if most is None else e.minimum(boxes, e.maximum(most.reshape(-1)[0], 0))
    return [Known(INT64, (batch * classes * kept, 3)), Known(INT64, ())]


def rounded_lstm(op: Operation) -> Sequence[Known]:
    """The state and the cell behind the last step, and every state."""
    (steps, batch, _), hidden = needed(op.shape(0)), needed(op.shape(3))[0]
    for place in (1, 2):
        batch = op.require_equal(batch, needed(op.shape(place))[0], "the batches of data and states differ")
    dtype = op.input(0).dtype
    return [Known(dtype, (batch, hidden)), Known(dtype, (batch, hidden)), Known(dtype, (steps, batch, hidden))]


def sizes(op: Operation) -> Sequence[Known]:
    """Expressions over the extents of the inputs."""
    shape = tuple(op.attribute("shape", ()))
    contents = np.empty(shape, object)
    contents.reshape(-1)[:] = [op.context.resolve(from_json(item)) for item in json.loads(op.attribute("sizes"))]
    return [Known(INT64, shape, contents)]


def append(op: Operation) -> Sequence[Known]:
    """A cache and what is put behind it, along the first axis."""
    before, new = needed(op.shape(0)), needed(op.shape(1))
    rest = (
        op.require_equal(a, b, "what is appended has another shape") for a, b in zip(before[1:], new[1:], strict=True)
    )
    return [Known(op.input(0).dtype, (op.context.resolve(before[0] + new[0]), *rest))]


def cached_attention(op: Operation) -> Sequence[Known]:
    """A row of the values' size for each query."""
    query, keys, values = (needed(op.shape(place)) for place in range(3))
    op.require_equal(keys[0], values[0], "as many keys as values")
    if op.has(3):
        op.require_equal(needed(op.shape(3))[-1], keys[0], "a mask for each key")
    return [Known(op.input(0).dtype, (*query[:3], values[3]))]


RULES: Final[Mapping[str, Rule]] = {
    own.EXTENTS: extents,
    own.PREFIX: prefix,
    own.POSITIONS: positions,
    own.UNIQUE: unique,
    own.SUPPRESSION: suppression,
    own.ROUNDED_LSTM: rounded_lstm,
    own.SIZES: sizes,
    own.APPEND: append,
    own.CACHED_ATTENTION: cached_attention,
}
