"""LSTM, GRU and RNN: what is said twice, and their decomposition."""

from __future__ import annotations

from onnx import NodeProto, numpy_helper

from forge_pipeline.ir.recurrent import STATES
from forge_pipeline.passes.contract import Equality, NoOptions, Transformation, verified
from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.nodes import attribute, is_op


@verified(Equality())
class DropDefaults(Transformation[NoOptions]):
    """Leave out initial states that are zero, and a bias that is zero: the operators' own defaults."""

    def call(self, graph: Graph) -> int:
        """Clear what is known to be zero whatever its shape."""
        changes = 0
        for node in graph.nodes:
            if not is_op(node, *STATES):
                continue
            for index in (3, *STATES[node.op_type]):
                if index < len(node.input) and node.input[index] and _is_zero(graph, node.input[index]):
                    graph.set_input(node, index, "")
                    changes += 1
            kept = list(node.input)
            while kept and not kept[-1]:
                kept.pop()
            graph.set_inputs(node, kept)
        return changes


def _is_zero(graph: Graph, name: str) -> bool:
    array = graph.array(name)
    if array is not None:
        return array.dtype.kind == "f" and not array.any()
    maker: NodeProto | None = graph.producer(name)
    if maker is None or not is_op(maker, "ConstantOfShape"):
        return False
    value = attribute(maker, "value")
    if value is None:
        return True
    return not numpy_helper.to_array(value).any()
