"""Reductions along axes, and the places of extremes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.operators.elementwise import FLOATS
from forge_pipeline.codegen.tir.primitives import is_nan


def axes_of(node: NodeImport) -> list[int]:
    """Return the axes of a reduction: an operand in later operator sets, an attribute in earlier ones."""
    given = node.listed(1, "axes", "axes")
    rank = node.rank()
    if given:
        return sorted(int(axis) % rank for axis in given)  # type: ignore[arg-type]
    return [] if node.attributes.get("noop_with_empty_axes", 0) else list(range(rank))


def _reduce(name: str, node: NodeImport) -> Any:
    return _reduced(node, node.input(0), name)


def _reduced(node: NodeImport, value: Any, name: str) -> Any:
    """Emit a sum, product, mean, maximum or minimum. Over an empty set, a sum is 0 and a product is 1."""
    axes, keeps = axes_of(node), bool(node.attributes.get("keepdims", 1))
    if not axes:
        return value
    if 0 in [node.shape()[axis] for axis in axes]:
        return _of_nothing(node, name)
    return getattr(op, name)(value, axes, keeps)


def _of_nothing(node: NodeImport, name: str) -> Any:
    dtype = node.dtype()
    is_float = dtype in FLOATS
    if name in ("max", "min"):
        sign = -1 if name == "max" else 1
        limits = None if is_float or dtype == "bool" else np.iinfo(dtype)
        number = sign * np.inf if limits is None else (limits.min if name == "max" else limits.max)
        number = name == "min" if dtype == "bool" else number
    else:
        number = {"sum": 0, "prod": 1, "mean": np.nan if is_float else 0}[name]
    return node.filled(number, dtype)


def _extreme(name: str, node: NodeImport) -> Any:
    """ReduceMax and ReduceMin; of floats NaN where one is, and infinity where all are, which TVM's own lose."""
    dtype, value = node.dtype(), node.input(0)
    if dtype == "bool":
        found = node.emit(_reduced(node, node.emit(op.astype(value, "uint8")), name))
        return op.astype(found, "bool")
    axes = axes_of(node)
    if dtype not in FLOATS or not axes or 0 in [node.shape()[axis] for axis in axes]:
        return _reduced(node, value, name)
    keeps = bool(node.attributes.get("keepdims", 1))
    return node.kernel(partial(_greatest, axes=axes, keeps=keeps, sign=1 if name == "max" else -1), value, name=name)


def _greatest(tensor: te.Tensor, *, axes: list[int], keeps: bool, sign: int) -> te.Tensor:
    """Describe the greatest number along axes, or the least: NaN if there is one."""

    def better(own: Any, other: Any) -> Any:
        is_better = own > other if sign > 0 else own < other
        return tirx.Select(tirx.any(is_better, is_nan(own)), own, other)

    greatest = te.comm_reducer(better, lambda kind: tirx.const(-sign * np.inf, kind), name="greatest")
    steps = {axis: te.reduce_axis((0, tensor.shape[axis])) for axis in axes}
    kept = [1 if axis in steps else extent for axis, extent in enumerate(tensor.shape) if keeps or axis not in steps]

    def element(*at: Any) -> Any:
        places = iter(at)
        where = [next(places) if keeps or axis not in steps else None for axis in range(len(tensor.shape))]
        return greatest(tensor(*(steps.get(axis, place) for axis, place in enumerate(where))), axis=[*steps.values()])

    return te.compute(kept, element, name="greatest")


def _of_parts(prepare: str, name: str, finish: str, node: NodeImport) -> Any:
    """ReduceL1, L2, LogSum and SumSquare: a function of each element, a sum, and a function of that."""
    value = node.input(0)
    if prepare == "square":
        value = node.emit(op.multiply(value, value))
    elif prepare:
        value = node.emit(getattr(op, prepare)(value))
    total = node.emit(_reduced(node, value, name))
    return getattr(op, finish)(total) if finish else total


def _log_sum_exp(node: NodeImport) -> Any:
    """``log(sum(exp(x)))`` around the greatest element, so that nothing overflows."""
    axes, value, dtype = axes_of(node), node.input(0), node.dtype()
    if not axes:
        return value
    greatest = node.emit(op.max(value, axes, True))
    finite = node.emit(op.less(node.emit(op.abs(greatest)), node.const(np.inf, dtype)))
    shift = node.emit(op.where(finite, greatest, node.const(0, dtype)))
    parts = node.emit(op.exp(node.emit(op.subtract(value, shift))))
    total = node.emit(op.log(node.emit(op.sum(parts, axes, True))))
    return node.reshape(node.emit(op.add(total, shift)), node.result_shape())


def _arg(node: NodeImport, *, is_max: bool) -> Any:
    takes_last = bool(node.attributes.get("select_last_index", 0))
    found = arg_extreme(node, node.input(0), node.axis(0), is_max=is_max, takes_last=takes_last)
    return node.reshape(found, node.result_shape())


def arg_extreme(node: NodeImport, value: Any, axis: int, *, is_max: bool, takes_last: bool) -> Any:
    """Emit the place of the extreme along an axis, which is gone: of equal ones the first, or the last. NaN is none."""

    def search(data: Any) -> Any:
        dtype = data.dtype
        along = te.reduce_axis((0, data.shape[axis]), name="k")
        worst = tirx.min_value(dtype) if is_max else tirx.max_value(dtype)

        def better(a: Any, b: Any) -> Any:
            ahead = a[1] > b[1] if is_max else a[1] < b[1]
            earlier = a[0] > b[0] if takes_last else a[0] < b[0]
            keeps = tirx.any(b[0] < 0, tirx.all(a[0] >= 0, tirx.any(ahead, tirx.all(a[1] == b[1], earlier))))
            return tirx.Select(keeps, a[0], b[0]), tirx.Select(keeps, a[1], b[1])

        reduce = te.comm_reducer(better, lambda t0, t1: (tirx.const(-1, t0), worst), name="best")
        shape = [extent for position, extent in enumerate(data.shape) if position != axis]

        def element(*at: Any) -> Any:
            place = (*at[:axis], along, *at[axis:])
            return reduce((along.astype("int64"), data(*place)), axis=along)

        return te.compute(shape, element, name="arg")[0]

    return node.kernel(search, value, name="argmax" if is_max else "argmin")


CONVERTERS: Mapping[str, Converter] = {
    "ReduceSum": partial(_reduce, "sum"),
    "ReduceMean": partial(_reduce, "mean"),
    "ReduceProd": partial(_reduce, "prod"),
    "ReduceMax": partial(_extreme, "max"),
    "ReduceMin": partial(_extreme, "min"),
    "ReduceL1": partial(_of_parts, "abs", "sum", ""),
    "ReduceL2": partial(_of_parts, "square", "sum", "sqrt"),
    "ReduceLogSum": partial(_of_parts, "", "sum", "log"),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceSumSquare": partial(_of_parts, "square", "sum", ""),
    "ArgMax": partial(_arg, is_max=True),
    "ArgMin": partial(_arg, is_max=False),
}
