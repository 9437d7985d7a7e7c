"""What is computed twice."""

from __future__ import annotations

from onnx import NodeProto

from forge_pipeline.ir.traversal import subgraphs
from forge_pipeline.passes.contract import Equality, NoOptions, Transformation, verified
from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.simplify.constants import RANDOM


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
