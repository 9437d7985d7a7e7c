"""Transposes move down through elementwise operators, until two of them meet or one is left at the end."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, helper

from forge_pipeline.passes.contract import Equality, NoOptions, Transformation, verified
from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.nodes import AXIS, UNARY, attribute, is_op, set_attribute

BINARY = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Mod", "And", "Or", "Xor", "PRelu"})


@verified(Equality())
class SinkTransposes(Transformation[NoOptions]):
    """Move a Transpose below what reads it, where the number of nodes does not grow by it.

    Below a unary operator; below a binary one whose other operand is constant or transposed the same way; below
    Concat when all operands are; below Softmax with its axis renamed. Merging and removing what meets is the work
    of merge-transposes and remove-identities.
    """

    def call(self, graph: Graph) -> int:
        """Walk down once; every move brings one transpose nearer to the outputs, so repeating comes to an end."""
        changes = 0
        for node in graph.nodes:
            if node in graph and node.domain in ("", "ai.onnx"):
                changes += _sink_below(graph, node)
        return changes


def _sink_below(graph: Graph, node: NodeProto) -> bool:
    if node.op_type in UNARY:
        return _unary(graph, node)
    if node.op_type in BINARY and len(node.input) == 2 and attribute(node, "broadcast") is None:
        return _binary(graph, node)
    if node.op_type == "Concat":
        return _concat(graph, node)
    if node.op_type in AXIS and graph.opset() >= 13:
        return _axis(graph, node)
    return False


def _above(graph: Graph, name: str) -> tuple[NodeProto, list[int]] | None:
    """Return the Transpose that makes a value, and its permutation, where nothing else reads it."""
    maker = graph.producer(name)
    if maker is None or not is_op(maker, "Transpose") or graph.only_user(name) is None:
        return None
    order = attribute(maker, "perm")
    return None if order is None else (maker, order)


def _unary(graph: Graph, node: NodeProto) -> bool:
    found = _above(graph, node.input[0])
    if found is None or any(name and graph.producer(name) is not None for name in node.input[1:]):
        return False
    _move(graph, node, [found[0]], {0: found[0].input[0]}, found[1])
    return True


def _axis(graph: Graph, node: NodeProto) -> bool:
    found = _above(graph, node.input[0])
    if found is None:
        return False
    order = found[1]
    axis = attribute(node, "axis", -1) % len(order)
    _move(graph, node, [found[0]], {0: found[0].input[0]}, order)
    set_attribute(node, "axis", order[axis])
    return True


def _binary(graph: Graph, node: NodeProto) -> bool:
    left, right = _above(graph, node.input[0]), _above(graph, node.input[1])
    if left is not None and right is not None:
        if left[1] != right[1] or left[0] is right[0]:
            return False
        _move(graph, node, [left[0], right[0]], {0: left[0].input[0], 1: right[0].input[0]}, left[1])
        return True
    found, operand = (left, 0) if left is not None else (right, 1)
    if found is None or (node.op_type == "PRelu" and operand == 1):
        return False
    other = node.input[1 - operand]
    array, order = graph.array(other), found[1]
    if array is None or array.ndim > len(order):
        return False
    inputs = {operand: found[0].input[0]}
    if array.size != 1 or array.ndim > 1:
        whole = array.reshape((1,) * (len(order) - array.ndim) + array.shape)
        moved = whole.transpose(np.argsort(order))
        inputs[1 - operand] = graph.add_constant(moved, f"{other}_moved")
    _move(graph, node, [found[0]], inputs, order)
    return True


def _concat(graph: Graph, node: NodeProto) -> bool:
    found = [_above(graph, name) for name in node.input]
    first = found[0]
    if first is None or len({id(entry[0]) for entry in found if entry is not None}) != len(node.input):
        return False
    if any(entry is None or entry[1] != first[1] for entry in found):
        return False
    order = first[1]
    axis = order[attribute(node, "axis") % len(order)]
    makers = [entry[0] for entry in found if entry is not None]
    _move(graph, node, makers, {index: maker.input[0] for index, maker in enumerate(makers)}, order)
    set_attribute(node, "axis", axis)
    return True


def _move(graph: Graph, node: NodeProto, makers: list[NodeProto], inputs: dict[int, str], order: list[int]) -> None:
    """Make ``node`` read what the transposes read, and put one transpose behind it."""
    for index, name in inputs.items():
        graph.set_input(node, index, name)
    for maker in makers:
        graph.remove(maker)
    target = node.output[0]
    moved = graph.fresh(f"{target}_before")
    graph.set_output(node, 0, moved)
    graph.add_node(helper.make_node("Transpose", [moved], [target], perm=order))
