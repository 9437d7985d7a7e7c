"""Parts of values: slices of slices, slices of concatenations, concatenations of neighbouring slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from forge_pipeline.passes.contract import Equality, NoOptions, Transformation, verified
from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.nodes import attribute, is_op, set_attribute


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Elements ``start`` to ``end`` (not included) of one axis, by ones, within the bounds of the source."""

    source: str
    axis: int
    start: int
    end: int


@verified(Equality(specials=True))
class MergeSlices(Transformation[NoOptions]):
    """Slice of Slice -> Slice; Slice of Concat -> one of its operands, or a Slice of one."""

    def call(self, graph: Graph) -> int:
        """Read through what is before each slice of one axis."""
        changes = 0
        for node in graph.nodes:
            part = slice_of(graph, node)
            before = graph.producer(node.input[0]) if part is not None else None
            if part is None or before is None:
                continue
            if is_op(before, "Slice"):
                changes += _nested(graph, node, part, before)
            elif is_op(before, "Concat"):
                changes += _of_concat(graph, node, part, before)
        return changes


def _nested(graph: Graph, node: NodeProto, part: Part, before: NodeProto) -> bool:
    outer = slice_of(graph, before)
    if outer is None or outer.axis != part.axis:
        return False
    _write(graph, node, outer.source, part.axis, outer.start + part.start, outer.start + part.end)
    return True


def _of_concat(graph: Graph, node: NodeProto, part: Part, concat: NodeProto) -> bool:
    shape = graph.shape(concat.output[0])
    if shape is None or attribute(concat, "axis") % len(shape) != part.axis:
        return False
    begin = 0
    for name in concat.input:
        operand = graph.shape(name)
        size = None if operand is None else operand[part.axis]
        if not isinstance(size, int):
            return False
        if begin <= part.start and part.end <= begin + size:
            if (part.start, part.end) == (begin, begin + size):
                return graph.bypass(node, name)
            _write(graph, node, name, part.axis, part.start - begin, part.end - begin)
            return True
        begin += size
    return False


def _write(graph: Graph, node: NodeProto, source: str, axis: int, start: int, end: int) -> None:
    if graph.opset() < 10:
        graph.replace(node, "Slice", [source], axes=[axis], starts=[start], ends=[end])
        return
    names = [
        graph.add_constant(np.array([value], np.int64), f"{node.output[0]}_{what}")
        for what, value in (("start", start), ("end", end), ("axis", axis))
    ]
    graph.replace(node, "Slice", [source, *names])


def slice_of(graph: Graph, node: NodeProto) -> Part | None:
    """Return what a Slice takes, where it takes a known part of one axis in steps of one."""
    if not is_op(node, "Slice"):
        return None
    if graph.opset() < 10:
        starts, ends = attribute(node, "starts"), attribute(node, "ends")
        axes, steps = attribute(node, "axes", list(range(len(starts)))), [1]
    else:
        arrays = [graph.array(name) if name else None for name in node.input[1:]]
        if any(array is None and name for array, name in zip(arrays, node.input[1:], strict=True)):
            return None
        starts, ends, axes, steps = (_entries(arrays, index) for index in range(4))
        axes = axes or list(range(len(starts)))
    shape = graph.shape(node.input[0])
    if len(starts) != 1 or (steps and steps[0] != 1) or shape is None:
        return None
    axis = axes[0] % len(shape)
    size = shape[axis]
    if not isinstance(size, int):
        return None
    start, end, _ = slice(starts[0], ends[0]).indices(size)
    return Part(source=str(node.input[0]), axis=axis, start=start, end=max(start, end))


def _entries(arrays: Sequence[np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None], index: int) -> list[int]:
    array = arrays[index] if index < len(arrays) else None
    return [] if array is None else [int(entry) for entry in array.reshape(-1)]


@verified(Equality(specials=True))
class MergeConcats(Transformation[NoOptions]):
    """Concat of Concat on one axis -> Concat; neighbouring slices of one value, concatenated, -> their union."""

    def call(self, graph: Graph) -> int:
        """Flatten first, then join neighbours."""
        changes = 0
        for node in graph.nodes:
            if is_op(node, "Concat"):
                changes += self._flatten(graph, node)
                changes += self._join(graph, node)
        return changes

    @staticmethod
    def _flatten(graph: Graph, node: NodeProto) -> bool:
        rank = graph.rank(node.output[0])
        if rank is None:
            return False
        axis, names, changed = attribute(node, "axis") % rank, [], False
        for name in node.input:
            maker = graph.producer(name)
            inner = is_op(maker, "Concat") and graph.only_user(name) is not None
            if maker is not None and inner and attribute(maker, "axis") % rank == axis:
                names.extend(maker.input)
                changed = True
            else:
                names.append(name)
        if changed:
            graph.set_inputs(node, names)
            set_attribute(node, "axis", axis)
        return changed

    @staticmethod
    def _join(graph: Graph, node: NodeProto) -> bool:
        rank = graph.rank(node.output[0])
        if rank is None:
            return False
        axis = attribute(node, "axis") % rank
        for index in range(len(node.input) - 1):
            makers = [graph.producer(name) for name in node.input[index : index + 2]]
            parts = [slice_of(graph, maker) if maker is not None else None for maker in makers]
            first, second = parts
            if first is None or second is None or first.source != second.source:
                continue
            if first.axis != axis or second.axis != axis or first.end != second.start or first.end <= first.start:
                continue
            if any(graph.only_user(name) is None for name in node.input[index : index + 2]):
                continue
            maker = makers[0]
            if maker is None or second.end <= second.start:
                continue
            joined = graph.fresh(f"{node.output[0]}_part")
            graph.set_inputs(node, [*node.input[:index], joined, *node.input[index + 2 :]])
            graph.remove(maker)
            renamed = NodeProto()
            renamed.CopyFrom(maker)
            renamed.output[0] = joined
            graph.add_node(renamed)
            _write(graph, renamed, first.source, axis, first.start, second.end)
            return True
        return False
