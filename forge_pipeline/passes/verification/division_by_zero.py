"""Integer divisions by zero, which ONNX leaves undefined and ONNX Runtime refuses."""

from __future__ import annotations

from onnx import ModelProto, NodeProto

from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.nodes import is_op
from forge_pipeline.passes.verification.samples import INTEGERS

MOVING = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "Expand", "Tile")
WHOLE = frozenset(INTEGERS)
DIVIDING = {"Div": (1,), "Mod": (1,), "STFT": (1, 3)}  # by which inputs; of STFT, the frames' step and length


def dividing_inputs(model: ModelProto) -> frozenset[str]:
    """Return the inputs of the model that integers are divided by: they must not be fed a zero."""
    if not any(is_op(node, *DIVIDING) for node in model.graph.node):
        return frozenset()
    graph = Graph(model)
    sources = {_source(graph, name) for node in graph.nodes for name in _divisors(graph, node)}
    return frozenset(value.name for value in model.graph.input if value.name in sources)


def divides_by_zero(graph: Graph, node: NodeProto) -> bool:
    """Whether a constant divisor of a node has a zero in it, or minus one, which the least integer overflows by."""
    arrays = [graph.array(name) for name in _divisors(graph, node)]
    return any(array is not None and bool((array == 0).any() or (array == -1).any()) for array in arrays)


def _divisors(graph: Graph, node: NodeProto) -> list[str]:
    """Return the integers that a node divides by, by name."""
    places = DIVIDING.get(node.op_type, ()) if node.domain in ("", "ai.onnx") else ()
    names = [str(node.input[place]) for place in places if place < len(node.input) and node.input[place]]
    return [name for name in names if graph.elem_type(name) in WHOLE]


def _source(graph: Graph, name: str) -> str:
    """Return the value that ``name`` is a copy of."""
    maker = graph.producer(name)
    return _source(graph, str(maker.input[0])) if maker is not None and is_op(maker, *MOVING) else name
