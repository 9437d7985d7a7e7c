"""What no output depends on."""

from __future__ import annotations

from forge_pipeline.passes.contract import Equality, NoOptions, Transformation, verified
from forge_pipeline.passes.graph import Graph


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
