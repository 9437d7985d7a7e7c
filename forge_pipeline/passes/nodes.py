"""Nodes by themselves: families of operators, attributes, copies, renaming and order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onnx import AttributeProto, GraphProto, NodeProto, helper

from forge_pipeline.ir.traversal import needs, subgraphs
from forge_pipeline.passes.errors import PassError

UNARY = frozenset(
    {
        "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Cast", "Ceil", "Celu", "Clip", "Cos",
        "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN",
        "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin",
        "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu",
    }
)  # fmt: skip
AXIS = frozenset({"Softmax", "LogSoftmax", "Hardmax"})  # with one axis from operator set 13 on


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """Return an attribute as Python knows it (str, not bytes), or ``default`` where the node does not have it."""
    for entry in node.attribute:
        if entry.name == name:
            value = helper.get_attribute_value(entry)
            if entry.type == AttributeProto.STRING:
                return value.decode()
            return list(value) if entry.type in (AttributeProto.INTS, AttributeProto.FLOATS) else value
    return default


def set_attribute(node: NodeProto, name: str, value: Any) -> None:
    """Give a node an attribute, in place of one of that name; None removes it."""
    kept = [entry for entry in node.attribute if entry.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if value is not None:
        node.attribute.append(helper.make_attribute(name, value))


def is_op(node: NodeProto | None, *ops: str) -> bool:
    """Whether a node is one of these operators of ONNX's own domain."""
    return node is not None and node.op_type in ops and node.domain in ("", "ai.onnx")


def clone(message: Any) -> Any:
    """Return a message of its own with the same content."""
    duplicate = type(message)()
    duplicate.CopyFrom(message)
    return duplicate


def names_within(graph: GraphProto) -> Iterator[str]:
    """Yield the names that a subgraph defines, those of its own subgraphs included."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from node.output
        for inner in subgraphs(node):
            yield from names_within(inner)


def rename_inputs(node: NodeProto, names: Mapping[str, str]) -> None:
    """Make a node, and its subgraphs, read other values: for each old name the new one."""
    for index, name in enumerate(node.input):
        if name in names:
            node.input[index] = names[name]
    for graph in subgraphs(node):
        for inner in graph.node:
            rename_inputs(inner, names)
        for value in graph.output:
            if value.name in names:  # a subgraph may hand a captured value straight on
                value.name = names[value.name]


def topological(nodes: dict[int, NodeProto], producer: dict[str, NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes after what they need, otherwise in the order given; iterative, as a graph may be deep."""
    entered: set[int] = set()
    done: set[int] = set()
    for root in nodes.values():
        if id(root) in entered:
            continue
        entered.add(id(root))
        stack = [(root, iter(needs(root)))]
        while stack:
            node, names = stack[-1]
            for name in names:
                maker = producer.get(name)
                if maker is None or id(maker) in done:
                    continue
                if id(maker) in entered:
                    raise PassError(
                        where=f"node {maker.name!r} ({maker.op_type})",
                        expected="a graph without cycles",
                        found=f"its output {name!r} is needed to compute it",
                        fix="correct the pass that joined them",
                    )
                entered.add(id(maker))
                stack.append((maker, iter(needs(maker))))
                break
            else:
                stack.pop()
                done.add(id(node))
                yield node
