"""Padding that an operator can do itself."""

from __future__ import annotations

from onnx import NodeProto

from forge_pipeline.passes.contract import NoOptions, Tolerance, Transformation, verified
from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.nodes import attribute, is_op, set_attribute

PADDING = ("Conv", "AveragePool", "MaxPool")


@verified(Tolerance())
class FoldPad(Transformation[NoOptions]):
    """Take a constant Pad of the spatial axes into the convolution or average pooling that reads it.

    A convolution pads with zeros; AveragePool counts them only with ``count_include_pad``; MaxPool pads with minus
    infinity, which a Pad by that value matches.
    """

    def call(self, graph: Graph) -> int:
        """Take in what is before each operator."""
        changes = 0
        for node in graph.nodes:
            if not is_op(node, *PADDING):
                continue
            pad = graph.producer(node.input[0])
            if pad is not None and is_op(pad, "Pad") and graph.only_user(pad.output[0]) is not None:
                changes += _take_in(graph, node, pad)
        return changes


def _take_in(graph: Graph, node: NodeProto, pad: NodeProto) -> bool:
    amounts, value = pads_of(graph, pad), _value(graph, pad)
    own = attribute(node, "pads")
    if amounts is None or value is None or attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return False
    rank = len(amounts) // 2
    begin, end = amounts[:rank], amounts[rank:]
    if any(begin[:2] + end[:2]) or min(begin + end) < 0:
        return False
    own = own or [0] * (2 * (rank - 2))
    match node.op_type:
        case "Conv":
            fits = value == 0.0
        case "AveragePool":
            fits = value == 0.0 and not any(own) and not attribute(node, "ceil_mode", 0)
        case _:
            fits = value == float("-inf") and not attribute(node, "ceil_mode", 0)
    total = [a + b for a, b in zip(own, begin[2:] + end[2:], strict=True)]
    if not fits or (node.op_type != "Conv" and not _within_window(node, total)):
        return False
    set_attribute(node, "pads", total)
    set_attribute(node, "auto_pad", None)
    if node.op_type == "AveragePool":
        set_attribute(node, "count_include_pad", 1)
    graph.set_input(node, 0, pad.input[0])
    graph.remove(pad)
    return True


def _within_window(node: NodeProto, pads: list[int]) -> bool:
    """Whether every window of a pooling sees an element: ONNX Runtime refuses others."""
    return all(pad < size for pad, size in zip(pads, [*attribute(node, "kernel_shape")] * 2, strict=True))


def pads_of(graph: Graph, pad: NodeProto) -> list[int] | None:
    """Return begins then ends for all axes, None where they are not constant."""
    if graph.opset() < 11:
        stated = attribute(pad, "pads") or attribute(pad, "paddings")
        return None if stated is None else [int(amount) for amount in stated]
    array = graph.array(pad.input[1])
    rank = graph.rank(pad.input[0])
    if array is None or rank is None:
        return None
    given = [int(amount) for amount in array.tolist()]
    if len(pad.input) < 4 or not pad.input[3]:
        return given if len(given) == 2 * rank else None
    axes = graph.array(pad.input[3])
    if axes is None:
        return None
    amounts = [0] * (2 * rank)
    for place, axis in enumerate(axes.tolist()):
        amounts[axis % rank] = given[place]
        amounts[axis % rank + rank] = given[place + len(axes)]
    return amounts


def _value(graph: Graph, pad: NodeProto) -> float | None:
    if attribute(pad, "mode", "constant") != "constant":
        return None
    if graph.opset() < 11:
        return float(attribute(pad, "value", 0.0))
    if len(pad.input) < 3 or not pad.input[2]:
        return 0.0
    array = graph.array(pad.input[2])
    return None if array is None or array.size != 1 else float(array.reshape(()))
