"""What is not used or said twice; and the passes that only tidy up, as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import NodeProto

from forge_pipeline.ir.traversal import subgraphs
from forge_pipeline.passes.contract import ComposePass, Equality, NoOptions, Pass, Tolerance, Transformation, verified
from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.simplify.constants import RANDOM, FoldConstants, FoldOptions, MergeConstants
from forge_pipeline.passes.simplify.identities import RemoveIdentities
from forge_pipeline.passes.simplify.shapes import FoldShapes


@verified(Equality(specials=True))
class MergeSubexpressions(Transformation[NoOptions]):
    """Keep one of nodes that apply the same operator with the same attributes to the same values.

    Source: Cocke, "Global common subexpression elimination", 1970. One walk in topological order finds whole chains.
    """

    def call(self, graph: Graph) -> int:
        """Point the users of later ones at the first."""
        seen: dict[tuple[object, ...], NodeProto] = {}
        changes = 0
        for node in graph.nodes:
            if node.op_type in RANDOM or next(subgraphs(node), None) is not None:
                continue
            first = seen.setdefault(_key(node), node)
            if first is not node:
                changes += _merge(graph, first, node)
        return changes


def _key(node: NodeProto) -> tuple[object, ...]:
    attributes = tuple(
        entry.SerializeToString(deterministic=True) for entry in sorted(node.attribute, key=lambda entry: entry.name)
    )
    present = tuple(bool(name) for name in node.output)
    return node.domain, node.op_type, tuple(node.input), attributes, present


def _merge(graph: Graph, first: NodeProto, second: NodeProto) -> bool:
    """Drop ``second``, unless both give an output of the graph, each of which needs its own name."""
    if any(graph.is_output(name) for name in second.output):
        return False
    graph.remove(second)
    for old, new in zip(second.output, first.output, strict=True):
        if old:
            graph.redirect(old, new)
    return True


@verified(Equality(specials=True))
class RemoveDead(Transformation[NoOptions]):
    """Remove nodes and constants that no output depends on. ONNX operators have no side effects."""

    def call(self, graph: Graph) -> int:
        """Go from the outputs to the inputs, so that one walk finds whole chains."""
        changes = 0
        for node in reversed(graph.nodes):
            if not any(graph.users(name) or graph.is_output(name) for name in node.output if name):
                graph.remove(node)
                changes += 1
        listed = {value.name for value in graph.inputs}
        for name in graph.constants:
            if not graph.users(name) and not graph.is_output(name) and name not in listed:
                graph.drop_constant(name)
                changes += 1
        return changes


@verified(Tolerance(rtol=0.0, atol=0.0))
class Cleanup(ComposePass[FoldOptions]):
    """Fold what is known, and remove what is said twice or not used, until nothing changes."""

    options_type = FoldOptions

    def passes(self) -> Sequence[Pass[Any]]:
        """Every one of them keeps all values but for the sign of a zero."""
        plain = (FoldShapes, RemoveIdentities, RemoveDead, MergeConstants, MergeSubexpressions)
        return [FoldConstants(self.options), *(cls(NoOptions()) for cls in plain)]
