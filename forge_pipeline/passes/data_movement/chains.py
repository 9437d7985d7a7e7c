"""Operators of one kind in a row: transposes, reshapes, casts, clips."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

from forge_pipeline.passes.contract import Equality, NoOptions, Transformation, verified
from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.nodes import AXIS, UNARY, attribute, clone, is_op, set_attribute

RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


@verified(Equality(specials=True))
class MergeTransposes(Transformation[NoOptions]):
    """Two transposes in a row are one; one that only moves axes of size one is a Reshape."""

    def call(self, graph: Graph) -> int:
        """Read through the transpose before, which goes when nothing else reads it."""
        changes = 0
        for node in graph.nodes:
            if not is_op(node, "Transpose"):
                continue
            before = graph.producer(node.input[0])
            if before is not None and is_op(before, "Transpose"):
                outer, inner = _permutation(graph, node), _permutation(graph, before)
                if outer is not None and inner is not None:
                    set_attribute(node, "perm", [inner[axis] for axis in outer])
                    graph.set_input(node, 0, before.input[0])
                    changes += 1
        return changes


@verified(Equality(specials=True))
class TransposesToReshapes(Transformation[NoOptions]):
    """A transpose that keeps the order of all axes longer than one moves no element: it is a Reshape."""

    def call(self, graph: Graph) -> int:
        """Replace where the result's shape is known but for one dimension."""
        if graph.opset() < 5:
            return 0
        changes = 0
        for node in graph.nodes:
            shape = graph.shape(node.input[0]) if is_op(node, "Transpose") else None
            order = _permutation(graph, node) if shape is not None else None
            if shape is None or order is None or order == sorted(order):
                continue
            moved = [axis for axis in order if shape[axis] != 1]
            target = [shape[axis] for axis in order]
            if moved == sorted(moved) and (entries := reshape_entries(target)) is not None:
                name = graph.add_constant(np.array(entries, np.int64), f"{node.output[0]}_shape")
                graph.replace(node, "Reshape", [node.input[0], name])
                changes += 1
        return changes


def reshape_entries(shape: list[int | str | None]) -> list[int] | None:
    """Return a target shape for Reshape, with -1 for one unknown dimension; None for more, or beside a zero."""
    unknown = [dim for dim in shape if not isinstance(dim, int)]
    if len(unknown) > 1 or 0 in shape:
        return None
    return [dim if isinstance(dim, int) else -1 for dim in shape]


def _permutation(graph: Graph, node: NodeProto) -> list[int] | None:
    order = attribute(node, "perm")
    if order is None:
        rank = graph.rank(node.input[0])
        return None if rank is None else list(reversed(range(rank)))
    return [int(axis) for axis in order]


@verified(Equality(specials=True))
class MergeReshapes(Transformation[NoOptions]):
    """Of Reshape, Flatten, Squeeze and Unsqueeze in a row the last one decides, where its result is known by itself."""

    def call(self, graph: Graph) -> int:
        """Read through what comes before; a Squeeze, Unsqueeze or Flatten becomes a Reshape for that."""
        if graph.opset() < 5:
            return 0
        changes = 0
        for node in graph.nodes:
            if not is_op(node, *RESHAPES):
                continue
            before = graph.producer(node.input[0])
            if before is None or not is_op(before, *RESHAPES):
                continue
            entries = self._target(graph, node, before.input[0])
            if entries is None:
                continue
            name = graph.add_constant(np.array(entries, np.int64), f"{node.output[0]}_shape")
            graph.replace(node, "Reshape", [before.input[0], name])
            changes += 1
        return changes

    @staticmethod
    def _target(graph: Graph, node: NodeProto, source: str) -> list[int] | None:
        shape = graph.shape(node.output[0])
        if shape is not None and (entries := reshape_entries(list(shape))) is not None:
            return entries
        origin = graph.shape(source)
        if shape is not None and origin is not None and 0 not in shape:
            return copied_entries(list(shape), list(origin))
        return None


def copied_entries(shape: list[int | str | None], source: list[int | str | None]) -> list[int] | None:
    """Return a target for Reshape that copies symbolic dimensions (0) from the same place, with at most one -1."""
    entries = [
        dim
        if isinstance(dim, int)
        else 0
        if isinstance(dim, str) and axis < len(source) and source[axis] == dim
        else -1
        for axis, dim in enumerate(shape)
    ]
    return entries if entries.count(-1) <= 1 else None


_EXACT = {  # what each type holds of others without rounding
    TensorProto.DOUBLE: {1, 10, 16, 2, 3, 4, 5, 6, 9, 12},
    TensorProto.FLOAT: {10, 16, 2, 3, 4, 5, 9},
    TensorProto.FLOAT16: {2, 3, 9},
    TensorProto.INT64: {2, 3, 4, 5, 6, 9, 12},
    TensorProto.INT32: {2, 3, 4, 5, 9},
    TensorProto.INT16: {2, 3, 9},
    TensorProto.INT8: {9},
    TensorProto.UINT8: {9},
    TensorProto.UINT64: {2, 4, 9, 12},
    TensorProto.UINT32: {2, 4, 9},
    TensorProto.UINT16: {2, 9},
}


@verified(Equality())
class MergeCasts(Transformation[NoOptions]):
    """A cast to a type that holds every value of the source, then another: the first is not needed."""

    def call(self, graph: Graph) -> int:
        """Read through the first cast."""
        changes = 0
        for node in graph.nodes:
            before = graph.producer(node.input[0]) if is_op(node, "Cast") else None
            if before is None or not is_op(before, "Cast"):
                continue
            source, between = graph.elem_type(before.input[0]), attribute(before, "to")
            if source == between or source in _EXACT.get(between, set()):
                graph.set_input(node, 0, before.input[0])
                changes += 1
        return changes


@verified(Equality())
class MergeClips(Transformation[NoOptions]):
    """Relu and Clip in a row are one Clip, or one Relu, where their bounds are known."""

    def call(self, graph: Graph) -> int:
        """Only bounds that leave a range are merged: Clip's result is undefined by the standard otherwise."""
        changes = 0
        for node in graph.nodes:
            before = graph.producer(node.input[0]) if is_op(node, "Clip", "Relu") else None
            if before is None or not is_op(before, "Clip", "Relu") or graph.only_user(before.output[0]) is None:
                continue
            inner, outer = _bounds(graph, before), _bounds(graph, node)
            if inner is None or outer is None:
                continue
            low, high = max(inner[0], outer[0]), min(inner[1], outer[1])
            if low <= high:
                _clip(graph, node, before.input[0], low, high)
                changes += 1
        return changes


def _bounds(graph: Graph, node: NodeProto) -> tuple[float, float] | None:
    if node.op_type == "Relu":
        return 0.0, np.inf
    low, high = -np.inf, np.inf
    if graph.opset() < 11:
        return float(attribute(node, "min", low)), float(attribute(node, "max", high))
    for index, name in enumerate(node.input[1:3]):
        if not name:
            continue
        array = graph.array(name)
        if array is None or array.dtype.kind != "f" or array.size != 1:
            return None
        low, high = (float(array), high) if index == 0 else (low, float(array))
    return low, high


def _clip(graph: Graph, node: NodeProto, source: str, low: float, high: float) -> None:
    if low == 0.0 and np.isinf(high):
        graph.replace(node, "Relu", [source])
        return
    if graph.opset() < 11:
        bounds: dict[str, Any] = {name: b for name, b in (("min", low), ("max", high)) if not np.isinf(b)}
        graph.replace(node, "Clip", [source], **bounds)
        return
    dtype = _np_dtype(graph.elem_type(source) or graph.elem_type(node.output[0]))
    names = [
        "" if np.isinf(bound) else graph.add_constant(np.array(bound, dtype), f"{node.output[0]}_{which}")
        for which, bound in (("min", low), ("max", high))
    ]
    graph.replace(node, "Clip", [source, *names] if names[1] else [source, names[0]])


def _np_dtype(elem_type: int) -> np.dtype[np.float64]:
    dtype: np.dtype[np.float64] = helper.tensor_dtype_to_np_dtype(elem_type)
    return dtype


@verified(Equality())
class CancelReshapes(Transformation[NoOptions]):
    """Reshape, elementwise operators, Reshape back: the operators take the value as it was.

    Softmax between them too, where the axis that it sums over is one axis of the value as it was; that is how the
    version converter writes the Softmax of operator sets before 13.
    """

    def call(self, graph: Graph) -> int:
        """Start at each reshape that may be the one back."""
        if graph.opset() < 13:
            return 0
        return sum(_cancel(graph, node) for node in graph.nodes if node in graph and is_op(node, *RESHAPES))


def _cancel(graph: Graph, back: NodeProto) -> bool:
    between: list[NodeProto] = []
    node = graph.producer(back.input[0])
    while node is not None and not is_op(node, *RESHAPES):
        only = graph.only_user(node.output[0]) is not None
        if not only or not is_op(node, *UNARY, *AXIS) or any(graph.producer(name) for name in node.input[1:] if name):
            return False
        between.append(node)
        node = graph.producer(node.input[0])
    if node is None or not between or graph.only_user(node.output[0]) is None:
        return False
    source = str(node.input[0])
    shape, flat = graph.static_shape(source), graph.static_shape(node.output[0])
    if shape is None or flat is None or shape != graph.static_shape(back.output[0]):
        return False
    axes = [_axis_before(attribute(found, "axis", -1), shape, flat) for found in between if is_op(found, *AXIS)]
    if None in axes:
        return False
    value = source
    graph.remove(back)
    for found in reversed(between):
        graph.remove(found)
        moved = clone(found)
        moved.name = ""
        moved.output[0] = back.output[0] if found is between[0] else graph.fresh(f"{back.output[0]}_direct")
        moved.input[0] = value
        if is_op(found, *AXIS):
            set_attribute(moved, "axis", _axis_before(attribute(found, "axis", -1), shape, flat))
        value = moved.output[0]
        graph.add_node(moved)
    return True


def _axis_before(axis: int, shape: tuple[int, ...], flat: tuple[int, ...]) -> int | None:
    """Return the axis of ``shape`` that is axis ``axis`` of ``flat``: as long, and with as many elements before it."""
    axis %= len(flat)
    before = int(np.prod(flat[:axis], dtype=object))
    for place, size in enumerate(shape):
        if size == flat[axis] and int(np.prod(shape[:place], dtype=object)) == before:
            return place
    return None
