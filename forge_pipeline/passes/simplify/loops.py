"""What no turn of a loop changes: read from outside of it, and computed there, once."""

from __future__ import annotations

from typing import Final

from onnx import GraphProto, NodeProto, helper

from forge_pipeline.passes.contract import Equality, NoOptions, Transformation, verified
from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.nodes import UNARY, clone, is_op, rename_inputs

MOVED: Final = UNARY | {
    *("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Where", "Equal", "Less", "Greater", "And", "Or", "Softmax"),
    *(
        "MatMul",
        "Gemm",
        "Conv",
        "Transpose",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Concat",
        "Shape",
        "Constant",
    ),
}
"""Operators that are computed outside; none of them fails for what is in its operands where shapes fit."""


@verified(Equality(specials=True))
class HoistInvariants(Transformation[NoOptions]):
    """Carry no value that no turn of a Loop changes, and compute before a Loop or Scan what all turns have in common.

    Exporters of PaddlePaddle models carry every weight that a loop reads, and transpose it in every turn.
    """

    def call(self, graph: Graph) -> int:
        """Look at each loop; those within others are looked at with the body that they are in."""
        changes = 0
        for node in graph.nodes:
            if is_op(node, "Loop", "Scan"):
                changes += _Loop(graph, node).hoist()
        return changes


class _Loop:
    """A loop of ``graph`` in the making: a copy of its node, what goes before it, and what its outputs are instead."""

    def __init__(self, graph: Graph, node: NodeProto) -> None:
        self.graph, self.before = graph, node
        self.node: NodeProto = clone(node)
        self.body: GraphProto = next(entry.g for entry in self.node.attribute if entry.name == "body")
        self.instead: list[tuple[str, str]] = []

    def hoist(self) -> int:
        """Write the loop in its new form, where it has one; return the number of changes."""
        if self.body.sparse_initializer:
            return 0
        kept = self._keep_outside() if is_op(self.node, "Loop") else 0
        moved = self._invariants()
        if not kept and not moved:
            return 0
        self.graph.remove(self.before)
        for node in moved:
            self.graph.add_node(node)
        self.graph.add_node(self.node)
        for output, source in self.instead:
            self.graph.replace_value(output, source)
        return kept + len(moved)

    def _keep_outside(self) -> int:
        """Drop what is carried from turn to turn as it is; return how many values that are."""
        node, body = self.node, self.body
        makers = {name: maker for maker in body.node for name in maker.output}

        def source(name: str) -> str:
            while is_op(makers.get(name), "Identity"):
                name = makers[name].input[0]
            return name

        fixed = [
            index
            for index, initial in enumerate(node.input[2:])
            if initial and source(body.output[1 + index].name) == body.input[2 + index].name
        ]
        names = {body.input[2 + index].name: node.input[2 + index] for index in fixed}
        for index in reversed(fixed):
            if index < len(node.output):
                if node.output[index]:
                    self.instead.append((node.output[index], node.input[2 + index]))
                del node.output[index]
            del node.input[2 + index], body.input[2 + index], body.output[1 + index]
        for inner in body.node:
            rename_inputs(inner, names)
        for value in body.output:
            if value.name in names:
                copy = self.graph.fresh(value.name)
                body.node.append(helper.make_node("Identity", [names[value.name]], [copy], name=self.graph.fresh(copy)))
                value.name = copy
        return len(fixed)

    def _invariants(self) -> list[NodeProto]:
        """Take out of the body, and return in order, what reads nothing that is made in it, and the constants of it."""
        body = self.body
        inside = {value.name for value in body.input} | {name for node in body.node for name in node.output}
        results = {value.name for value in body.output}
        found: list[NodeProto] = []
        for node in body.node:
            if is_op(node, *MOVED) and inside.isdisjoint(node.input) and results.isdisjoint(node.output):
                found.append(node)
                inside -= set(node.output)
        read = {name for node in found if node.op_type != "Constant" for name in node.input}
        moved = [node for node in found if node.op_type != "Constant" or node.output[0] in read]
        if not read:
            return []
        places = {id(node) for node in moved}
        copies = [clone(node) for node in moved]
        kept = [clone(node) for node in body.node if id(node) not in places]
        del body.node[:]
        body.node.extend(kept)
        for tensor in [tensor for tensor in body.initializer if tensor.name in read]:
            self.graph.set_tensor(clone(tensor))
            body.initializer.remove(tensor)
        return copies
