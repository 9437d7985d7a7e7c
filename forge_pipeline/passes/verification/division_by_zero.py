"""Integer divisions that ONNX Runtime must not be asked for: by zero, its process is killed by the processor.

ONNX leaves integer division by zero undefined, and no exception comes of it that could be caught.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto, NodeProto

from forge_pipeline.ir.traversal import nodes_below
from forge_pipeline.passes.graph import Array, Graph
from forge_pipeline.passes.nodes import is_op
from forge_pipeline.passes.subgraphs import apply_to_bodies
from forge_pipeline.passes.verification.samples import INTEGERS

MOVING = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "Expand", "Tile")
SIZES = ("Shape", "Size")
WHOLE = frozenset(INTEGERS)
DIVIDING = {"Div": (1,), "Mod": (1,), "STFT": (1, 3)}  # by which inputs; of STFT, the frames' step and length
WHY = "it divides integers by what may be zero, which ends the process"


def dangerous(model: ModelProto) -> tuple[frozenset[str], str | None]:
    """Return the inputs that must not be fed a zero, and why the model must not be run at all, if that is so."""
    if not any(is_op(node, *DIVIDING) for node in nodes_below(model.graph.node)):
        return frozenset(), None
    graph, inputs, reasons = Graph(model), set[str](), list[str]()

    def look(part: Graph, *, inner: bool) -> int:
        for node in part.nodes:
            for name in divisors(part, node):
                found = _divisor(part, name)
                if found is None or (inner and found):
                    reasons.append(f"{node.op_type} {node.name!r}: {WHY}")
                inputs.update(found or ())
        return 0

    look(graph, inner=False)
    apply_to_bodies(graph, lambda part: look(part, inner=True))
    return frozenset(inputs), reasons[0] if reasons else None


def has_zero(inputs: Mapping[str, Array], names: frozenset[str]) -> bool:
    """Whether one of the inputs called ``names`` holds a zero."""
    return any(name in names and array.size and not array.all() for name, array in inputs.items())


def divisors(graph: Graph, node: NodeProto) -> list[str]:
    """Return the integers that a node divides by, by name."""
    places = DIVIDING.get(node.op_type, ()) if node.domain in ("", "ai.onnx") else ()
    names = [str(node.input[place]) for place in places if place < len(node.input) and node.input[place]]
    return [name for name in names if graph.elem_type(name) in WHOLE]


def divides_by_zero(graph: Graph, node: NodeProto) -> bool:
    """Whether a constant divisor of a node has a zero in it, or minus one, which the least integer overflows by."""
    arrays = [graph.array(name) for name in divisors(graph, node)]
    return any(array is not None and bool((array == 0).any() or (array == -1).any()) for array in arrays)


def _divisor(graph: Graph, name: str) -> set[str] | None:
    """Return the inputs that a divisor is a copy of; None where it is computed from data, or has a zero."""
    array = graph.array(name)
    if array is not None:
        return None if (array == 0).any() else set()
    maker = graph.producer(name)
    if maker is None:
        return {name}
    if is_op(maker, *MOVING):
        return _divisor(graph, str(maker.input[0]))
    return set() if _from_sizes(graph, maker) else None


def _from_sizes(graph: Graph, root: NodeProto) -> bool:
    """Whether a value is computed from constants and the sizes of others alone."""
    pending, seen = [root], set[int]()
    while pending:
        node = pending.pop()
        if id(node) in seen or is_op(node, *SIZES):
            continue
        seen.add(id(node))
        for name in node.input:
            maker = graph.producer(name)
            if maker is not None:
                pending.append(maker)
            elif name and not graph.is_constant(name):
                return False
    return True
