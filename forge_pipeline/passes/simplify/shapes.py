"""Arithmetic on shapes, done ahead as far as dimensions are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import NodeProto, TensorProto

from forge_pipeline.passes.contract import Annotation, Equality, NoOptions, Transformation, verified
from forge_pipeline.passes.data_movement.chains import copied_entries
from forge_pipeline.passes.graph import Array, Graph, skeleton
from forge_pipeline.passes.nodes import attribute, is_op
from forge_pipeline.registry import Registry

Entry = int | str | None
Vector = tuple[Entry, ...]  # a one-dimensional int64 value, entry by entry: a number, a symbol, or not known
Rule = Callable[["Dimensions", NodeProto], Vector | None]

MAX_ENTRIES = 64  # longer values are data, not shapes


class Dimensions:
    """What is known of values that hold dimensions."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._known: dict[str, Vector | None] = {}
        for node in graph.nodes:
            rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
            if rule is not None and len(node.output) == 1:
                self._known[node.output[0]] = rule(self, node)

    def of(self, name: str) -> Vector | None:
        """Return a value's entries, None where they are not known; a scalar has one."""
        if name in self._known:
            return self._known[name]
        array = self.graph.array(name)
        if array is None or array.dtype.kind not in "iu" or array.size > MAX_ENTRIES:
            return None
        return tuple(int(entry) for entry in array.reshape(-1))

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """Return a value's entries where all of them are numbers."""
        return numbers(self.of(name))


def numbers(vector: Vector | None) -> tuple[int, ...] | None:
    """Return the entries where all of them are numbers."""
    known = tuple(entry for entry in vector or () if isinstance(entry, int))
    return known if vector is not None and len(known) == len(vector) else None


def _shape(known: Dimensions, node: NodeProto) -> Vector | None:
    shape = known.graph.shape(node.input[0])
    if shape is None:
        return None
    start, end = attribute(node, "start", 0), attribute(node, "end")
    return shape[slice(start, end)]


def _gather(known: Dimensions, node: NodeProto) -> Vector | None:
    data, indices = known.of(node.input[0]), known.numbers(node.input[1])
    if data is None or indices is None or known.graph.rank(node.input[0]) != 1:
        return None
    return tuple(data[index] for index in indices) if all(-len(data) <= i < len(data) for i in indices) else None


def _slice(known: Dimensions, node: NodeProto) -> Vector | None:
    data = known.of(node.input[0])
    if data is None or known.graph.rank(node.input[0]) != 1:
        return None
    starts: tuple[int, ...] | None
    ends: tuple[int, ...] | None
    steps: tuple[int, ...]
    if known.graph.opset() < 10:
        starts, ends, steps = tuple(attribute(node, "starts")), tuple(attribute(node, "ends")), (1,)
    else:
        starts, ends = known.numbers(node.input[1]), known.numbers(node.input[2])
        steps = known.numbers(node.input[4]) or () if len(node.input) > 4 and node.input[4] else (1,)
    if not starts or not ends or not steps or steps[0] < 1:
        return None
    return data[slice(starts[0], ends[0], steps[0])]


def _concat(known: Dimensions, node: NodeProto) -> Vector | None:
    parts = [known.of(name) for name in node.input]
    if any(part is None for part in parts) or known.graph.rank(node.output[0]) != 1:
        return None
    return tuple(entry for part in parts if part is not None for entry in part)


def _same(known: Dimensions, node: NodeProto) -> Vector | None:
    return known.of(node.input[0])


def _cast(known: Dimensions, node: NodeProto) -> Vector | None:
    integers = (TensorProto.INT64, TensorProto.INT32)
    return known.of(node.input[0]) if attribute(node, "to") in integers else None


def _arithmetic(function: Callable[[int, int], int | None]) -> Rule:
    def rule(known: Dimensions, node: NodeProto) -> Vector | None:
        if len(node.input) != 2:
            return None
        left, right = known.of(node.input[0]), known.of(node.input[1])
        if left is None or right is None or (len(left) != len(right) and 1 not in (len(left), len(right))):
            return None
        size = max(len(left), len(right))
        pairs = zip(_stretched(left, size), _stretched(right, size), strict=True)
        return tuple(function(a, b) if isinstance(a, int) and isinstance(b, int) else None for a, b in pairs)

    return rule


def _stretched(vector: Vector, size: int) -> Vector:
    return vector * size if len(vector) == 1 else vector


def _quotient(a: int, b: int) -> int | None:
    return a // b if b > 0 and a >= 0 else None


def _product(known: Dimensions, node: NodeProto) -> Vector | None:
    entries = known.numbers(node.input[0])
    if entries is None or known.graph.rank(node.input[0]) != 1 or len(node.input) > 1 or attribute(node, "axes"):
        return None
    return (int(np.prod(entries, dtype=object)),)


def _size(known: Dimensions, node: NodeProto) -> Vector | None:
    shape = known.graph.static_shape(node.input[0])
    return None if shape is None else (int(np.prod(shape, dtype=object)),)


RULES: Registry[Rule] = Registry(
    "shape rule",
    {
        "Shape": _shape, "Gather": _gather, "Slice": _slice, "Concat": _concat, "Unsqueeze": _same, "Squeeze": _same,
        "Identity": _same, "Cast": _cast, "Add": _arithmetic(lambda a, b: a + b), "Size": _size,
        "Sub": _arithmetic(lambda a, b: a - b), "Mul": _arithmetic(lambda a, b: a * b), "ReduceProd": _product,
        "Div": _arithmetic(_quotient), "Max": _arithmetic(max), "Min": _arithmetic(min),
    },
)  # fmt: skip


@verified(Equality(specials=True))
class FoldShapes(Transformation[NoOptions]):
    """Replace values computed from known dimensions by constants, whatever else of the shape is symbolic.

    A Reshape to a computed shape becomes one to a constant, where its symbolic entries are copies of the source's
    dimension at the same place (0 in the target) and at most one more (-1).
    """

    def call(self, graph: Graph) -> int:
        """Take what is known as it was before the first edit: values keep their meaning."""
        known = Dimensions(graph)
        changes = 0
        for node in graph.nodes:
            if len(node.output) == 1 and node.op_type in RULES:
                changes += self._constant(graph, node, known.numbers(node.output[0]))
            if is_op(node, "Reshape") and len(node.input) == 2:
                changes += self._reshape(graph, node, known.of(node.input[1]))
        return changes

    @staticmethod
    def _constant(graph: Graph, node: NodeProto, entries: Sequence[int] | None) -> bool:
        name = node.output[0]
        rank = graph.rank(name)
        dtype = {TensorProto.INT64: np.int64, TensorProto.INT32: np.int32}.get(graph.elem_type(name))
        if entries is None or rank is None or rank > 1 or dtype is None or graph.is_output(name):
            return False
        if rank == 0 and len(entries) != 1:
            return False
        graph.remove(node)
        array: Array = np.array(entries, dtype)
        graph.set_constant(name, array if rank else array.reshape(()))
        return True

    @staticmethod
    def _reshape(graph: Graph, node: NodeProto, target: Vector | None) -> bool:
        source = graph.shape(node.input[0])
        if target is None or source is None or graph.is_constant(node.input[1]) or attribute(node, "allowzero", 0):
            return False
        if 0 in target or target.count(-1) > 1 or any(isinstance(e, int) and e < -1 for e in target):
            return False
        entries = copied_entries(list(target), list(source))
        if entries is None:
            return False
        graph.set_input(node, 1, graph.add_constant(np.array(entries, np.int64), f"{node.output[0]}_shape"))
        return True


@verified(Equality(specials=True))
class StaticReshapes(Transformation[NoOptions]):
    """Write the whole target of a Reshape whose result is fully known, so that no later reader has to infer it."""

    def call(self, graph: Graph) -> int:
        """Replace targets that hold 0 or -1, or that are computed."""
        changes = 0
        for node in graph.nodes:
            if not is_op(node, "Reshape") or len(node.input) != 2:
                continue
            shape = graph.static_shape(node.output[0])
            now = graph.array(node.input[1])
            if shape is None or 0 in shape or (now is not None and tuple(now.tolist()) == shape):
                continue
            graph.set_input(node, 1, graph.add_constant(np.array(shape, np.int64), f"{node.output[0]}_shape"))
            changes += 1
        return changes


@verified(Equality(specials=True))
class InferShapes(Annotation[NoOptions]):
    """State the types of all inner values in the model, as ONNX's shape inference finds them."""

    def call(self, graph: Graph) -> int:
        """Compare with what is stated already."""
        import onnx

        before = {value.name: value for value in graph.model().graph.value_info}
        graph.unstate()
        known = onnx.shape_inference.infer_shapes(skeleton(graph), data_prop=True)
        for value in known.graph.value_info:
            graph.state(value)
        after = {value.name: value for value in known.graph.value_info}
        return sum(before.get(name) != value for name, value in after.items())
