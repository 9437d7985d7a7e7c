"""Control flow and local functions that need not be there."""

from __future__ import annotations

from onnx import GraphProto, NodeProto

from forge_pipeline.ir.functions import inline_functions
from forge_pipeline.passes.contract import Equality, NoOptions, Transformation, verified
from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.nodes import attribute, is_op, rename_inputs


@verified(Equality(specials=True))
class InlineBranches(Transformation[NoOptions]):
    """Put the branch that an If with a constant condition takes in its place."""

    def call(self, graph: Graph) -> int:
        """Inline from the outside in: an If within a branch is seen by the next round."""
        changes = 0
        for node in graph.nodes:
            condition = graph.array(node.input[0]) if is_op(node, "If") else None
            if condition is not None and condition.size == 1:
                branch = attribute(node, "then_branch" if condition.reshape(()) else "else_branch")
                changes += _inline(graph, node, branch)
        return changes


def _inline(graph: Graph, node: NodeProto, branch: GraphProto) -> bool:
    if branch.sparse_initializer:
        return False
    body = GraphProto()
    body.CopyFrom(branch)
    names = {tensor.name: graph.fresh(tensor.name) for tensor in body.initializer}
    for inner in body.node:
        names |= {name: graph.fresh(name) for name in inner.output if name}
    graph.remove(node)
    for tensor in body.initializer:
        tensor.name = names[tensor.name]
        graph.set_tensor(tensor)
    for inner in body.node:
        rename_inputs(inner, names)
        for index, name in enumerate(inner.output):
            inner.output[index] = names.get(name, name)
        inner.name = ""
        graph.add_node(inner)
    for value, target in zip(body.output, node.output, strict=True):
        if not target:
            continue
        source = names.get(value.name, value.name)
        graph.replace_value(target, source)
    return True


@verified(Equality(specials=True))
class InlineFunctions(Transformation[NoOptions]):
    """Replace calls of local functions by their bodies, by ONNX's own inliner."""

    in_bodies = False

    def call(self, graph: Graph) -> int:
        """Take the nodes of the inlined model over."""
        calls = len(graph.header.functions)
        if calls:
            graph.reset(inline_functions(graph.model()))
        return calls
