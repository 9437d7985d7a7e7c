"""Constant arithmetic in a row."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from forge_pipeline.passes.contract import NoOptions, Tolerance, Transformation, verified
from forge_pipeline.passes.graph import Array, Graph
from forge_pipeline.passes.nodes import attribute, is_op

MULTIPLICATIVE = ("Mul", "Div")
ADDITIVE = ("Add", "Sub")


@verified(Tolerance())
class MergeScales(Transformation[NoOptions]):
    """``(x * a) * b -> x * (a * b)``, ``(x + a) - b -> x + (a - b)`` and the like, for float constants.

    The combined constant is rounded once, from float64. One that would overflow, or vanish, is not formed.
    """

    def call(self, graph: Graph) -> int:
        """Take the first of two operators into the second."""
        return sum(_merge(graph, node) for node in graph.nodes if is_op(node, *MULTIPLICATIVE, *ADDITIVE))


def _merge(graph: Graph, node: NodeProto) -> bool:
    family = MULTIPLICATIVE if node.op_type in MULTIPLICATIVE else ADDITIVE
    outer = _term(graph, node)
    maker = graph.producer(outer[0]) if outer is not None else None
    if outer is None or maker is None or not is_op(maker, *family) or graph.only_user(maker.output[0]) is None:
        return False
    inner = _term(graph, maker)
    if inner is None or graph.elem_type(inner[0]) != graph.elem_type(node.output[0]):
        return False
    a, b = inner[1], outer[1]
    with np.errstate(all="ignore"):
        if family is MULTIPLICATIVE:
            combined = _factor(a, maker) * _factor(b, node)
        else:
            combined = _summand(a, maker) + _summand(b, node)
        rounded = combined.astype(a.dtype)
    rank = graph.rank(inner[0])
    vanished = (rounded == 0) & (combined != 0)
    if rank is None or combined.ndim > rank or not np.isfinite(rounded).all() or vanished.any():
        return False
    if rounded.size > max(a.size, b.size):
        return False
    name = graph.add_constant(rounded, f"{node.output[0]}_{'factor' if family is MULTIPLICATIVE else 'summand'}")
    graph.replace(node, family[0], [inner[0], name])
    return True


def _term(graph: Graph, node: NodeProto) -> tuple[str, Array] | None:
    """Return the variable operand and the constant one; a constant is never divided or subtracted from."""
    if len(node.input) != 2 or attribute(node, "broadcast") is not None:
        return None
    operands = (0, 1) if node.op_type in ("Mul", "Add") else (1,)
    for constant in operands:
        array = graph.array(node.input[constant])
        if (
            array is not None
            and array.dtype.kind == "f"
            and array.size
            and not graph.is_constant(node.input[1 - constant])
        ):
            return str(node.input[1 - constant]), array
    return None


def _factor(array: Array, node: NodeProto) -> Array:
    wide: Array = array.astype(np.float64)
    return 1.0 / wide if node.op_type == "Div" else wide


def _summand(array: Array, node: NodeProto) -> Array:
    wide: Array = array.astype(np.float64)
    return -wide if node.op_type == "Sub" else wide
