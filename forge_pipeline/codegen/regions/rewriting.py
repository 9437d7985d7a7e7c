"""A model written so that all that hangs on data is a step of a program (``ir.program_operators``) or control flow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from forge_pipeline.codegen.regions.data_sizes import taken_apart
from forge_pipeline.codegen.regions.fragment import Fragment
from forge_pipeline.codegen.regions.normal_form import copied, graphs_of
from forge_pipeline.codegen.regions.scans import as_loop
from forge_pipeline.ir.constant_node import STANDARD
from forge_pipeline.ir.sizes.analysis import Sizes, analyse
from forge_pipeline.ir.sizes.rules.control import levelled
from forge_pipeline.ir.sizes.value import UNKNOWN, Shape
from forge_pipeline.ir.traversal import every_node

ROUNDS: Final = 8
"""How often a model is gone through: what is taken apart may show that more has to be."""


def rewritten(model: ModelProto) -> tuple[ModelProto, Sizes, bool]:
    """Return a model in normal form rewritten, the sizes of its values, and whether it is another than before.

    The given model may be changed.
    """
    changed = False
    for _ in range(ROUNDS):
        sizes = analyse(model)
        rewriter = _Rewriter(model, sizes)
        if not rewriter.graph(model.graph):
            break
        model.graph.initializer.extend(rewriter.weights)
        changed = True
    return model, sizes, changed


def opset_of(model: ModelProto) -> int:
    """Return the version of ONNX's operators."""
    return next((int(entry.version) for entry in model.opset_import if entry.domain in STANDARD), 1)


class _Rewriter:
    """One pass over all graphs."""

    def __init__(self, model: ModelProto, sizes: Sizes) -> None:
        self.sizes = sizes
        self.opset = opset_of(model)
        self.weights: list[TensorProto] = []
        self.makers = {name: maker for maker in every_node(model) for name in maker.output}

    def graph(self, graph: GraphProto) -> bool:
        """Rewrite a graph and those within; return whether anything changed."""
        changed, nodes = False, list[NodeProto]()
        for node in graph.node:
            found = self._instead(node)
            changed |= found is not None
            nodes.extend([node] if found is None else found)
            for inner in [] if found is not None else graphs_of(node):
                changed |= self.graph(inner)
        if changed:
            copies = [copied(node) for node in nodes]
            del graph.node[:]
            graph.node.extend(copies)
        return changed

    def _instead(self, node: NodeProto) -> Iterable[NodeProto] | None:
        """Return what stands in place of a node, None where it stays."""
        if node.domain not in STANDARD:
            return None
        if node.op_type == "If":
            return self._taken(node) or self._level_branches(node)
        if node.op_type == "Loop":
            return self._level_turns(node)
        if node.op_type == "Scan":
            found = as_loop(node, self.opset)
        else:
            found = self._split(node) or taken_apart(node, self.sizes, self.opset, self.makers)
        if found is None:
            return None
        self.weights += found.weights
        return found.nodes

    def _split(self, node: NodeProto) -> Fragment | None:
        """Return a split into parts of sizes that are all one number as one into parts of that size."""
        maker = self.makers.get(node.input[1]) if node.op_type == "SplitToSequence" and len(node.input) > 1 else None
        if maker is None or maker.op_type != "ConstantOfShape":
            return None
        value = next((numpy_helper.to_array(entry.t) for entry in maker.attribute), np.zeros(1, np.int64))
        if value.item() <= 0:
            return None
        fragment = Fragment(stem=node.output[0], opset=self.opset)
        fragment.copy(node, 1, fragment.constant(value.reshape(()), value.dtype))
        return fragment

    def _level_branches(self, node: NodeProto) -> list[NodeProto] | None:
        """Return an If of which both branches give a result in one shape; None where they do (``levelled``)."""
        branches = list(graphs_of(node))
        changed = False
        for values in zip(*(branch.output for branch in branches), strict=True):
            level = levelled(*(self._shape(value.name) for value in values))
            for branch, value in zip(branches, values, strict=True):
                changed |= self._level(branch, value, level)
        return [node] if changed else None

    def _level_turns(self, node: NodeProto) -> list[NodeProto] | None:
        """Return a Loop that begins with what it carries in the shape that every turn gives it; None where it does."""
        (body,) = graphs_of(node)
        before = Fragment(stem=f"{body.input[0].name}/before", opset=self.opset)
        changed = False
        for index, carried in enumerate(body.input[2:]):
            level, initial = self._shape(carried.name), node.input[2 + index]
            if self._is_lower(initial, level):
                node.input[2 + index] = before.node("Reshape", initial, before.constant(level))
                changed = True
            changed |= self._level(body, body.output[1 + index], level)
        self.weights += before.weights
        return [*before.nodes, node] if changed else None

    def _level(self, graph: GraphProto, result: ValueInfoProto, level: Shape | None) -> bool:
        """Give a result of ``graph`` the shape ``level``; return whether it had fewer axes."""
        if not self._is_lower(result.name, level):
            return False
        fragment = Fragment(stem=f"{result.name}/level", opset=self.opset)
        result.name = fragment.node("Reshape", result.name, fragment.constant(level))
        result.type.tensor_type.ClearField("shape")
        self.weights += fragment.weights
        graph.node.extend(fragment.nodes)
        return True

    def _is_lower(self, name: str, level: Shape | None) -> bool:
        shape = self._shape(name)
        return level is not None and levelled(shape, level) == level and shape != level

    def _shape(self, name: str) -> Shape | None:
        return self.sizes.values.get(name, UNKNOWN).shape

    def _taken(self, node: NodeProto) -> list[NodeProto] | None:
        """Return the branch that an If takes whenever it runs, None where that is not known."""
        known = self.sizes.values.get(node.input[0], UNKNOWN)
        branches = {entry.name: entry.g for entry in node.attribute}
        if known.constant is not None:
            branch = branches["then_branch" if known.constant.reshape(-1)[0] else "else_branch"]
        elif known.contents is not None and _squeezes(**branches):
            branch = branches["then_branch"]
        else:
            return None
        pairs = zip(branch.output, node.output, strict=True)
        ends = [helper.make_node("Identity", [value.name], [name]) for value, name in pairs if name]
        return [*branch.node, *ends]


def _squeezes(then_branch: GraphProto, else_branch: GraphProto) -> bool:
    """Return whether an If is what PyTorch's older exporter writes for the removal of an axis whose size it cannot see.

    What follows was traced without the axis. That it is 1 becomes a demand of Squeeze on the sizes of the inputs.
    """
    kinds = [[node.op_type for node in graph.node] for graph in (then_branch, else_branch)]
    return kinds[0] == ["Squeeze"] and kinds[1] in ([], ["Identity"])
