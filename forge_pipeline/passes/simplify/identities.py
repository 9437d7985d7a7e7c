"""Operators that give back what they take."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import NodeProto

from forge_pipeline.passes.contract import NoOptions, Tolerance, Transformation, verified
from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.nodes import attribute, is_op
from forge_pipeline.registry import Registry

Rule = Callable[[Graph, NodeProto], str | None]


@verified(Tolerance(rtol=0.0, atol=0.0))
class RemoveIdentities(Transformation[NoOptions]):
    """Bypass operators that give back one of their inputs: copies, casts to the same type, x + 0, x * 1, x ** 1 ...

    Exact but for one bit: ``-0.0 + 0.0`` is ``0.0``, so a sum that goes may leave a zero its sign.
    """

    def call(self, graph: Graph) -> int:
        """Bypass what a rule names a source for."""
        changes = 0
        for node in graph.nodes:
            rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
            source = rule(graph, node) if rule and _has_one_output(graph, node) else None
            if source is not None:
                changes += graph.bypass(node, source)
        return changes


def _has_one_output(graph: Graph, node: NodeProto) -> bool:
    return not any(name and (graph.users(name) or graph.is_output(name)) for name in node.output[1:])


def _copy(graph: Graph, node: NodeProto) -> str | None:
    return str(node.input[0])


def _dropout(graph: Graph, node: NodeProto) -> str | None:
    version = graph.opset()
    if version < 7 and not attribute(node, "is_test", 0):
        return None
    if version >= 12 and len(node.input) > 2 and node.input[2]:
        training = graph.array(node.input[2])
        if training is None or training.any():
            return None
    return str(node.input[0])


def _cast(graph: Graph, node: NodeProto) -> str | None:
    return str(node.input[0]) if graph.elem_type(node.input[0]) == attribute(node, "to") else None


def _same_shape(graph: Graph, node: NodeProto) -> str | None:
    """Reshape, Expand, Flatten, Squeeze, Pad and the like: the same where the shape is the same."""
    before, after = graph.static_shape(node.input[0]), graph.static_shape(node.output[0])
    return str(node.input[0]) if before is not None and before == after else None


def _transpose(graph: Graph, node: NodeProto) -> str | None:
    order = attribute(node, "perm")
    rank = graph.rank(node.input[0])
    if order is None:
        return str(node.input[0]) if rank is not None and rank < 2 else None
    return str(node.input[0]) if order == sorted(order) else None


def _slice(graph: Graph, node: NodeProto) -> str | None:
    """The whole of a value is sliced where sizes agree and no step is negative."""
    steps = graph.array(node.input[4]) if len(node.input) > 4 and node.input[4] else None
    if len(node.input) > 4 and node.input[4] and (steps is None or (steps < 0).any()):
        return None
    return _same_shape(graph, node)


def _pad(graph: Graph, node: NodeProto) -> str | None:
    pads = attribute(node, "pads") or attribute(node, "paddings")
    if pads is None and len(node.input) > 1:
        array = graph.array(node.input[1])
        pads = None if array is None else array.tolist()
    return str(node.input[0]) if pads is not None and not any(pads) else None


def _concat(graph: Graph, node: NodeProto) -> str | None:
    return str(node.input[0]) if len(node.input) == 1 else None


def _resize(graph: Graph, node: NodeProto) -> str | None:
    """Resize by a scale of exactly one everywhere, or to the size that is there, by a rule that keeps each pixel."""
    if attribute(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return None
    if len(node.input) > 3 and node.input[3]:
        before, after = graph.open_shape(node.input[0]), graph.open_shape(node.output[0])
        return str(node.input[0]) if before is not None and None not in before and before == after else None
    scales = graph.array(node.input[-1]) if len(node.input) in (2, 3) and node.input[-1] else None
    if is_op(node, "Resize") and graph.opset() == 10 and len(node.input) == 2:
        scales = graph.array(node.input[1])
    return str(node.input[0]) if scales is not None and scales.size and bool((scales == 1).all()) else None


def _pool(graph: Graph, node: NodeProto) -> str | None:
    """A window of one element, moved by one, with nothing added around."""
    ones = (attribute(node, "kernel_shape", [2]), attribute(node, "strides", [1]))
    plain = attribute(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID") and not any(attribute(node, "pads", []))
    return str(node.input[0]) if plain and all(set(values) == {1} for values in ones) else None


def _neutral_right(value: float) -> Rule:
    def rule(graph: Graph, node: NodeProto) -> str | None:
        return _if_neutral(graph, node, constant=1, other=0, value=value)

    return rule


def _neutral_either(value: float) -> Rule:
    def rule(graph: Graph, node: NodeProto) -> str | None:
        left = _if_neutral(graph, node, constant=0, other=1, value=value)
        return left or _if_neutral(graph, node, constant=1, other=0, value=value)

    return rule


def _if_neutral(graph: Graph, node: NodeProto, *, constant: int, other: int, value: float) -> str | None:
    """Return the other operand where one is ``value`` throughout and does not broadcast the other."""
    if len(node.input) != 2 or attribute(node, "broadcast") is not None:
        return None
    array = graph.array(node.input[constant])
    if array is None or array.dtype == object or not array.size or not bool((array == value).all()):
        return None
    source = str(node.input[other])
    shape = graph.shape(source)
    if shape is None or graph.elem_type(source) != graph.elem_type(node.output[0]):
        return None
    return source if _adds_nothing(array.shape, shape) else None


def _adds_nothing(constant: tuple[int, ...], shape: tuple[int | str | None, ...]) -> bool:
    if len(constant) > len(shape):
        return False
    tail = shape[len(shape) - len(constant) :]
    return all(size in (1, dim) for size, dim in zip(constant, tail, strict=True))


def _one_operand(graph: Graph, node: NodeProto) -> str | None:
    return str(node.input[0]) if len(node.input) == 1 else None


def _same_operands(graph: Graph, node: NodeProto) -> str | None:
    return str(node.input[0]) if len(node.input) == 2 and node.input[0] == node.input[1] else None


def _where(graph: Graph, node: NodeProto) -> str | None:
    if node.input[1] == node.input[2]:
        same = graph.static_shape(node.input[1])
        return str(node.input[1]) if same is not None and same == graph.static_shape(node.output[0]) else None
    condition = graph.array(node.input[0])
    if condition is None or not condition.size or condition.any() != condition.all():
        return None
    source = str(node.input[1] if condition.all() else node.input[2])
    shape = graph.static_shape(source)
    return source if shape is not None and shape == graph.static_shape(node.output[0]) else None


def _cumulative(graph: Graph, node: NodeProto) -> str | None:
    """Reductions over axes of size one keep every element."""
    if not attribute(node, "keepdims", 1):
        return None
    axes_input = graph.array(node.input[1]) if len(node.input) > 1 and node.input[1] else None
    if len(node.input) > 1 and node.input[1] and axes_input is None:
        return None
    axes = attribute(node, "axes") if axes_input is None else np.atleast_1d(axes_input).tolist()
    shape = graph.shape(node.input[0])
    if shape is None:
        return None
    if not axes:
        if attribute(node, "noop_with_empty_axes", 0):
            return str(node.input[0])
        axes = list(range(len(shape)))
    return str(node.input[0]) if all(shape[axis] == 1 for axis in axes) else None


def _same_type_as(graph: Graph, node: NodeProto) -> str | None:
    known = graph.elem_type(node.input[0])
    return str(node.input[0]) if known and known == graph.elem_type(node.input[1]) else None


def _boolean(graph: Graph, node: NodeProto, *, neutral: bool) -> str | None:
    same = _same_operands(graph, node) if node.op_type != "Xor" else None
    return same or _neutral_either(neutral)(graph, node)


def _undone(graph: Graph, node: NodeProto) -> str | None:
    """The same operator twice gives back what the first one takes: -(-x), not not x."""
    before = graph.producer(node.input[0])
    return str(before.input[0]) if before is not None and is_op(before, node.op_type) else None


def _done_already(graph: Graph, node: NodeProto) -> str | None:
    """The operator changes nothing in what an operator of the same kind gives."""
    before = graph.producer(node.input[0])
    return str(node.input[0]) if before is not None and is_op(before, *SETTLED[node.op_type]) else None


def _clip(graph: Graph, node: NodeProto) -> str | None:
    """A Clip without bounds."""
    unbounded = not any(node.input[1:]) and attribute(node, "min") is None and attribute(node, "max") is None
    return str(node.input[0]) if unbounded else None


def _slope(graph: Graph, node: NodeProto) -> str | None:
    return str(node.input[0]) if attribute(node, "alpha", 0.01) == 1.0 else None


def _block(graph: Graph, node: NodeProto) -> str | None:
    return str(node.input[0]) if attribute(node, "blocksize") == 1 else None


def _split(graph: Graph, node: NodeProto) -> str | None:
    """A Split in one part."""
    return str(node.input[0]) if len(node.output) == 1 else None


WHOLE = ("Floor", "Ceil", "Round")
SETTLED = {
    "Abs": ("Abs", "Relu", "Sigmoid", "Exp", "Sqrt", "Softplus", "HardSigmoid"), "Sign": ("Sign",), "Relu": ("Abs",),
    **dict.fromkeys(WHOLE, (*WHOLE, "Sign")),
}  # fmt: skip


def _global_pool(graph: Graph, node: NodeProto) -> str | None:
    shape = graph.shape(node.input[0])
    return str(node.input[0]) if shape is not None and len(shape) > 2 and set(shape[2:]) == {1} else None


RULES: Registry[Rule] = Registry(
    "identity rule",
    {
        "Identity": _copy, "Dropout": _dropout, "Cast": _cast, "CastLike": _same_type_as,
        "Reshape": _same_shape, "Flatten": _same_shape, "Expand": _same_shape, "Squeeze": _same_shape,
        "Unsqueeze": _same_shape, "Tile": _same_shape, "Slice": _slice, "Pad": _pad, "Transpose": _transpose,
        "Concat": _concat, "Resize": _resize, "Upsample": _resize, "MaxPool": _pool, "AveragePool": _pool,
        "Add": _neutral_either(0), "Sub": _neutral_right(0), "Mul": _neutral_either(1), "Div": _neutral_right(1),
        "Pow": _neutral_right(1), "BitShift": _neutral_right(0), "Or": lambda g, n: _boolean(g, n, neutral=False),
        "And": lambda g, n: _boolean(g, n, neutral=True), "Xor": lambda g, n: _boolean(g, n, neutral=False),
        "Max": lambda g, n: _one_operand(g, n) or _same_operands(g, n),
        "Min": lambda g, n: _one_operand(g, n) or _same_operands(g, n),
        "Sum": _one_operand, "Mean": _one_operand, "Where": _where,
        "ReduceSum": _cumulative, "ReduceMean": _cumulative, "ReduceMax": _cumulative, "ReduceMin": _cumulative,
        "ReduceProd": _cumulative, "GlobalAveragePool": _global_pool,
        "GlobalMaxPool": _global_pool, **dict.fromkeys(("Neg", "Not", "BitwiseNot"), _undone), "Clip": _clip,
        **dict.fromkeys(SETTLED, _done_already), "LeakyRelu": _slope, "Split": _split, "DepthToSpace": _block,
        "SpaceToDepth": _block, "BitwiseAnd": lambda g, n: _same_operands(g, n) or _neutral_either(-1)(g, n),
        "BitwiseOr": lambda g, n: _same_operands(g, n) or _neutral_either(0)(g, n),
        "BitwiseXor": _neutral_either(0), "PRelu": _neutral_right(1),
    },
)  # fmt: skip
