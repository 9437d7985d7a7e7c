"""TensorFlow Lite's operators along axes: sums, extremes, softmax, running sums, segments."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from forge_pipeline.frontends.tflite.builder import FIRST, LAST, TO_FIRST, Builder, Converter, onnx_type, option
from forge_pipeline.frontends.tflite.model import Operator

_SCATTERED: Final = {"SUM": "add", "PROD": "mul", "MAX": "max", "MIN": "min"}


def _axes(b: Builder, op: Operator) -> list[int]:
    rank = b.rank(op.inputs[0])
    return sorted({int(axis) % rank for axis in b.data(op.inputs[1], "set of axes").reshape(-1)}) if rank else []


def reduction(op_type: str) -> Converter:
    """Over constant axes; with the channels where they are."""

    def convert(b: Builder, op: Operator) -> None:
        keep, axes = bool(option(op, "KeepDims", False)), _axes(b, op)
        layout = b.layout(op.inputs[0])
        layout = layout if keep or {1, 2} <= set(axes) else LAST  # [n, c] is the same in both layouts
        own = [TO_FIRST.index(axis) for axis in axes] if layout == FIRST else axes
        values = b.real(op.inputs[0], layout)
        name = b.node(op_type, [values, b.integers(*own)], keepdims=int(keep)) if axes else values
        b.put(op.outputs[0], name, layout if keep else LAST)

    return convert


def of_flags(op_type: str) -> Converter:
    """REDUCE_ANY as the largest, REDUCE_ALL as the least of flags that are integers."""

    def convert(b: Builder, op: Operator) -> None:
        keep, axes = bool(option(op, "KeepDims", False)), _axes(b, op)
        name = b.node("Cast", [b.stored(op.inputs[0])], to=onnx_type("int32"))
        if axes:
            name = b.node(op_type, [name, b.integers(*axes)], keepdims=int(keep))
        b.give(op.outputs[0], b.node("Cast", [name], to=onnx_type("bool")))

    return convert


def extreme_index(op_type: str) -> Converter:
    """ARG_MAX, ARG_MIN."""

    def convert(b: Builder, op: Operator) -> None:
        axis = int(b.data(op.inputs[1], "axis").reshape(-1)[0])
        values = b.real(op.inputs[0])
        if b.tensor(op.inputs[0]).dtype == "bool":
            values = b.node("Cast", [values], to=onnx_type("int32"))
        name = b.node(op_type, [values], axis=axis, keepdims=0)
        b.give(op.outputs[0], b.cast(name, b.tensor(op.outputs[0]).dtype))

    return convert


def softmax(b: Builder, op: Operator) -> None:
    """SOFTMAX over the last dimension; ``beta`` scales what goes in."""
    name, beta = b.real(op.inputs[0]), float(option(op, "Beta", 1.0))
    if beta != 1.0:
        name = b.node("Mul", [name, b.constant(np.float32(beta))])
    b.put(op.outputs[0], b.node("Softmax", [name], axis=-1))


def last_axis(op_type: str, **attributes: Any) -> Converter:
    """Over the last dimension: LOG_SOFTMAX, L2_NORMALIZATION."""

    def convert(b: Builder, op: Operator) -> None:
        b.put(op.outputs[0], b.node(op_type, [b.real(op.inputs[0])], axis=-1, **attributes))

    return convert


def running_sum(b: Builder, op: Operator) -> None:
    """CUMSUM along a constant axis."""
    axis = b.constant(np.int64(b.data(op.inputs[1], "axis").reshape(-1)[0]))
    flags = {name.lower(): int(option(op, name, False)) for name in ("Exclusive", "Reverse")}
    b.put(op.outputs[0], b.node("CumSum", [b.real(op.inputs[0]), axis], **flags))


def segment_sum(b: Builder, op: Operator) -> None:
    """SEGMENT_SUM: the numbers of the segments ascend, so that the last one tells how many there are."""
    segments = b.int64(op.inputs[1])
    last = b.node("Slice", [segments, b.integers(-1), b.integers((1 << 63) - 1)])
    count = b.node("Add", [last, b.integers(1)])
    b.put(op.outputs[0], _scattered(b, op, "SUM", segments, count))


def unsorted_segments(kind: str) -> Converter:
    """UNSORTED_SEGMENT_*: a negative number of a segment drops the value, into one behind the last."""

    def convert(b: Builder, op: Operator) -> None:
        count = b.node("Reshape", [b.int64(op.inputs[2]), b.integers(1)])
        segments = b.int64(op.inputs[1])
        outside = b.node("Less", [segments, b.constant(np.int64(0))])
        segments = b.node("Where", [outside, count, segments])
        whole = _scattered(b, op, kind, segments, b.node("Add", [count, b.integers(1)]))
        b.put(op.outputs[0], b.node("Slice", [whole, b.integers(0), count, b.integers(0)]))

    return convert


def _scattered(b: Builder, op: Operator, kind: str, segments: str, count: str) -> str:
    """Return what the values of each segment come to."""
    dtype = np.dtype(b.tensor(op.inputs[0]).dtype)
    limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    empty = {"SUM": 0, "PROD": 1, "MAX": limits.min, "MIN": limits.max}[kind]
    values, rank = b.real(op.inputs[0]), b.rank(op.inputs[1])
    rest = b.node("Shape", [values], start=rank)
    target = b.node("Expand", [b.constant(dtype.type(empty)), b.node("Concat", [count, rest], axis=0)])
    picks = b.node("Unsqueeze", [segments, b.integers(-1)])
    return b.node("ScatterND", [target, picks, values], reduction=_SCATTERED[kind])
