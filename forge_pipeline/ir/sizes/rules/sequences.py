"""Sequences of tensors, and optional values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from onnx import TensorProto

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.expression import Whole
from forge_pipeline.ir.sizes.operation import Operation, Rule, Unknown, needed
from forge_pipeline.ir.sizes.rules.control import common, elements
from forge_pipeline.ir.sizes.rules.slicing import joined
from forge_pipeline.ir.sizes.value import UNKNOWN, Known, of_array

LONGEST: Final = 1024
"""Tensors of the longest sequence whose tensors are told apart."""


def construct(op: Operation) -> Sequence[Known]:
    """A sequence of the inputs."""
    return [Known(0, None, items=tuple(known or UNKNOWN for known in op.inputs))]


def empty(op: Operation) -> Sequence[Known]:
    """A sequence of nothing."""
    return [Known(0, None, items=(), element=Known(int(op.attribute("dtype", TensorProto.FLOAT)), None))]


def _position(op: Operation, index: int, count: int, default: int) -> int | None:
    if not op.has(index):
        return default
    found = op.constant(index)
    if found is None:
        return None
    place = int(found.reshape(-1)[0])
    place = place + count if place < 0 else place
    return place if 0 <= place <= count else None


def insert(op: Operation) -> Sequence[Known]:
    """Put a tensor into a sequence, at the end by default."""
    given, tensor = op.input(0), op.input(1)
    if given.items is not None and len(given.items) < LONGEST:
        place = _position(op, 2, len(given.items), len(given.items))
        if place is not None:
            return [Known(0, None, items=(*given.items[:place], tensor, *given.items[place:]))]
    before = elements(op, given)
    return [Known(0, None, element=tensor if given.items == () else common(op, before, tensor, "item"))]


def erase(op: Operation) -> Sequence[Known]:
    """Take a tensor out of a sequence, the last by default."""
    given = op.input(0)
    place = None if given.items is None else _position(op, 1, len(given.items), len(given.items) - 1)
    if given.items is None or place is None:
        return [Known(0, None, element=elements(op, given))]
    return [Known(0, None, items=(*given.items[:place], *given.items[place + 1 :]))]


def at(op: Operation) -> Sequence[Known]:
    """A tensor of a sequence."""
    given = op.input(0)
    place = None if given.items is None else _position(op, 1, len(given.items), 0)
    if given.items is None or place is None or place >= len(given.items):
        return [elements(op, given)]
    return [given.items[place]]


def length(op: Operation) -> Sequence[Known]:
    """The number of tensors."""
    items = op.input(0).items
    return [Known(TensorProto.INT64, ()) if items is None else of_array(np.array(len(items), np.int64))]


def split(op: Operation) -> Sequence[Known]:
    """Split a tensor along an axis: into parts of one size, of given sizes, or of 1."""
    given, shape = op.input(0), needed(op.shape(0))
    axis = op.axis(0, len(shape))
    keep = bool(op.attribute("keepdims", 1)) or op.has(1)
    sizes = op.input(1).contents if op.has(1) else None
    whole = shape[axis]
    if op.has(1) and sizes is None:
        return [Known(0, None, element=_part(given, axis, op.fresh("part", whole), keep=True))]
    if sizes is not None and sizes.ndim:
        parts: list[Whole] = sizes.reshape(-1).tolist()
        op.require_equal(whole, e.total(parts), f"the parts of axis {axis} do not add up")
        return [Known(0, None, items=tuple(_part(given, axis, part, keep=True) for part in parts))]
    each: Whole = 1 if sizes is None else sizes.reshape(-1).tolist()[0]
    if isinstance(each, int) and isinstance(whole, int) and each > 0 and -(-whole // each) <= LONGEST:
        counts = [min(each, whole - start) for start in range(0, whole, each)]
        return [Known(0, None, items=tuple(_part(given, axis, count, keep=keep) for count in counts))]
    divides = e.is_zero(e.mod(whole, each))
    return [Known(0, None, element=_part(given, axis, each if divides else op.fresh("part", whole), keep=keep))]


def _part(given: Known, axis: int, size: Whole, *, keep: bool) -> Known:
    shape = needed(given.shape)
    return Known(given.dtype, (*shape[:axis], *((size,) if keep else ()), *shape[axis + 1 :]))


def concat(op: Operation) -> Sequence[Known]:
    """Join the tensors of a sequence along an axis, or along a new one."""
    given, new = op.input(0), bool(op.attribute("new_axis", 0))
    axis = int(op.attribute("axis"))
    if given.items:
        shapes = [needed(item.shape) for item in given.items]
        if new:
            place = axis % (len(shapes[0]) + 1)
            shapes = [(*shape[:place], 1, *shape[place:]) for shape in shapes]
        return [Known(given.items[0].dtype, joined(op, shapes, axis % len(shapes[0])))]
    element = elements(op, given)
    shape = list(needed(element.shape))
    if new:
        shape.insert(axis % (len(shape) + 1), op.fresh("count"))
    else:
        shape[axis % len(shape)] = op.fresh("joined")
    return [Known(element.dtype, tuple(shape))]


def optional(op: Operation) -> Sequence[Known]:
    """A value that may be missing: where it is given, it is itself."""
    return [op.input(0) if op.has(0) else UNKNOWN]


def element_of_optional(op: Operation) -> Sequence[Known]:
    """The value that is there."""
    return [op.input(0)]


def has_element(op: Operation) -> Sequence[Known]:
    """Whether there is a value. One that is no optional is there; one left out is not."""
    if not op.has(0):
        return [of_array(np.array(False))]
    if op.input(0) is UNKNOWN:
        return [Known(TensorProto.BOOL, ())]
    raise Unknown


RULES: Final[Mapping[str, Rule]] = {
    "SequenceConstruct": construct,
    "SequenceEmpty": empty,
    "SequenceInsert": insert,
    "SequenceErase": erase,
    "SequenceAt": at,
    "SequenceLength": length,
    "SplitToSequence": split,
    "ConcatFromSequence": concat,
    "Optional": optional,
    "OptionalGetElement": element_of_optional,
    "OptionalHasElement": has_element,
}
