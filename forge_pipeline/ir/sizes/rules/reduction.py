"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
from onnx import TensorProto

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.expression import Overgrown, Whole
from forge_pipeline.ir.sizes.operation import Operation, Rule, needed
from forge_pipeline.ir.sizes.rules.elementwise import FLOATS
from forge_pipeline.ir.sizes.value import Array, Known, Shape

_WHOLE: Final[Mapping[str, Callable[[list[Whole]], Whole]]] = {
    "ReduceProd": e.product,
    "ReduceSum": e.total,
    "ReduceMax": lambda sizes: e.maximum(*sizes),
    "ReduceMin": lambda sizes: e.minimum(*sizes),
}


def reduce(op: Operation) -> Sequence[Known]:
    """Reduce over ``axes``, over all where there are none (unless ``noop_with_empty_axes``)."""
    given, shape = op.input(0), needed(op.shape(0))
    axes = op.integers("axes", 1)
    keep = bool(op.attribute("keepdims", 1))
    if axes is None and op.has(1):
        return [_open(op, given, shape, keep=keep)]
    if not axes and op.attribute("noop_with_empty_axes", 0):
        return [given if op.node.op_type in _WHOLE else Known(given.dtype, shape)]
    gone = {axis % len(shape) for axis in axes if shape} if axes else set(range(len(shape)))
    result = tuple(1 if axis in gone else size for axis, size in enumerate(shape) if keep or axis not in gone)
    return [Known(given.dtype, result, _contents(op, given, sorted(gone), keep=keep))]


def _open(op: Operation, given: Known, shape: Shape, *, keep: bool) -> Known:
    """Return the result where the axes are not known: with ``keepdims``, each extent stays or becomes 1."""
    return Known(given.dtype, tuple(op.fresh(str(axis)) for axis in range(len(shape))) if keep else None)


def _contents(op: Operation, given: Known, axes: list[int], *, keep: bool) -> Array | None:
    function = _WHOLE.get(op.node.op_type)
    if function is None or given.contents is None or given.dtype in FLOATS or given.dtype == TensorProto.BOOL:
        return None
    moved = np.moveaxis(given.contents, axes, range(len(axes)))
    rest = moved.shape[len(axes) :]
    rows = moved.reshape(-1, int(np.prod(rest)))
    if not rows.shape[0]:
        return None
    found = np.empty(rows.shape[1], object)
    try:
        found[:] = [function(column) for column in rows.T.tolist()]
    except Overgrown:
        return None
    return np.expand_dims(found.reshape(rest), axes) if keep else found.reshape(rest)


def arg(op: Operation) -> Sequence[Known]:
    """Position of the largest or smallest along an axis."""
    shape = needed(op.shape(0))
    axis = op.axis(0, len(shape))
    behind = (1,) if op.attribute("keepdims", 1) else ()
    result = (*shape[:axis], *behind, *shape[axis + 1 :])
    constant = op.constant(0)
    if constant is None or op.attribute("select_last_index", 0) or not constant.size:
        return [Known(TensorProto.INT64, result)]
    function = partial(np.argmax if op.node.op_type == "ArgMax" else np.argmin, axis=axis)
    found = np.asarray(function(constant), np.int64)
    return [Known(TensorProto.INT64, result, constant=np.expand_dims(found, axis) if behind else found)]


_NAMES: Final = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
RULES: Final[Mapping[str, Rule]] = {**dict.fromkeys(_NAMES, reduce), "ArgMax": arg, "ArgMin": arg}
