"""What a model shows of itself: which inputs it has."""

from __future__ import annotations

from forge_pipeline.passes.contract import Equality, NoOptions, Transformation, verified
from forge_pipeline.passes.graph import Graph

FIRST_IR_WITH_HIDDEN_CONSTANTS = 4


@verified(Equality(specials=True))
class ConstantsNotInputs(Transformation[NoOptions]):
    """Stop listing initializers among the inputs.

    IR versions before 4 demanded the listing; since then it means a default that a caller may override, which keeps
    every other pass from treating a weight as constant. Source: ONNX's IR specification, "Graphs".
    """

    in_bodies = False

    def call(self, graph: Graph) -> int:
        """Drop the entries; raise the IR version where it would forbid that."""
        kept = [value for value in graph.inputs if graph.constant(value.name) is None]
        dropped = len(graph.inputs) - len(kept)
        if dropped:
            graph.inputs = kept
            graph.header.ir_version = max(graph.header.ir_version, FIRST_IR_WITH_HIDDEN_CONSTANTS)
            graph.forget_types()
        return dropped
