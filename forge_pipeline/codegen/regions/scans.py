"""Scan as Loop: a turn for each slice of the inputs, which its body picks by the number of the turn.

Before set 9, a Scan has a batch in front of everything: a loop over its rows is around it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper

from forge_pipeline.codegen.regions.fragment import Fragment

WITHOUT_BATCH = 9
"""The first set of operators whose Scan has no batch."""


def as_loop(node: NodeProto, opset: int) -> Fragment | None:
    """Return what replaces a Scan; None where the rank of a result is not stated but needed, or rows end early."""
    attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    if opset < WITHOUT_BATCH:
        return None if node.input[0] else _over_rows(node, attributes, opset)
    return _over_slices(node, attributes, opset)


def _over_rows(node: NodeProto, attributes: dict[str, Any], opset: int) -> Fragment | None:
    """Return a loop over the rows of a batch, whose turns scan a row each."""
    f = Fragment(stem=node.output[0] or node.output[-1], opset=opset)
    body, scanned = attributes["body"], int(attributes["num_scan_inputs"])
    turn, condition = f"{f.stem}/row", f"{f.stem}/more"
    rows = [f"{f.stem}/row{at}" for at in range(1, len(node.input))]
    results = [f"{f.stem}/result{at}" for at in range(len(node.output))]
    scan = helper.make_node("Scan", rows, results, body=body, num_scan_inputs=scanned)
    if "directions" in attributes:
        scan.attribute.append(helper.make_attribute("scan_input_directions", attributes["directions"]))
    row = as_loop(scan, WITHOUT_BATCH)
    if row is None:
        return None
    f.weights += row.weights
    picks = [
        helper.make_node("Gather", [source, turn], [name], axis=0)
        for source, name in zip(node.input[1:], rows, strict=True)
    ]
    following = helper.make_node("Identity", [condition], [f"{condition}/next"])
    graph = helper.make_graph(
        [*picks, *row.nodes, following],
        f"{f.stem}/rows",
        [
            helper.make_tensor_value_info(turn, TensorProto.INT64, []),
            helper.make_tensor_value_info(condition, TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info(f"{condition}/next", TensorProto.BOOL, []),
            *(
                helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, None)
                for name, value in zip(results, body.output, strict=True)
            ),
        ],
    )
    count = f.node("Gather", f.node("Shape", node.input[-1]), f.constant(0))
    f.nodes_of("Loop", (count, ""), list(node.output), body=graph)
    return f


def _over_slices(node: NodeProto, attributes: dict[str, Any], opset: int) -> Fragment | None:
    """Return a loop over the slices of the inputs."""
    body: GraphProto = attributes["body"]
    scanned = int(attributes["num_scan_inputs"])
    states, slices = list(node.input[:-scanned]), list(node.input[-scanned:])
    results = len(node.output) - len(states)
    axes = _numbers(attributes, "scan_input_axes", scanned)
    reverses = _numbers(attributes, "scan_input_directions", scanned)
    ranks = [_rank(value) for value in body.output[len(states) :]]
    turned = _numbers(attributes, "scan_output_axes", results)
    if any(axis and rank is None for axis, rank in zip(turned, ranks, strict=True)):
        return None
    f = Fragment(stem=node.output[0] or node.output[-1], opset=opset)
    count = f.node("Gather", f.node("Shape", slices[0]), f.constant(axes[0]))
    last = f.node("Sub", count, f.constant(1))
    graph = _body(f, body, slices, axes, reverses, last)
    stacks = [f"{f.stem}/stack{at}" for at in range(results)]
    loop = helper.make_node("Loop", [count, "", *states], [*node.output[: len(states)], *stacks], name=node.name)
    loop.attribute.append(helper.make_attribute("body", graph))
    f.nodes.append(loop)
    back = _numbers(attributes, "scan_output_directions", results)
    for at, stack in enumerate(stacks):
        output = node.output[len(states) + at]
        if output:
            _placed(f, stack, turned[at], ranks[at], output, is_reversed=bool(back[at]))
    return f


def _numbers(attributes: dict[str, Any], name: str, count: int) -> list[int]:
    return [int(number) for number in attributes.get(name, [0] * count)]


def _rank(value: Any) -> int | None:
    kind = value.type.tensor_type
    return len(kind.shape.dim) if kind.HasField("shape") else None


def _body(
    f: Fragment, body: GraphProto, slices: list[str], axes: list[int], reverses: list[int], last: str
) -> GraphProto:
    """Return the loop's body: that of the Scan, after it has picked its slices."""
    graph = GraphProto()
    graph.CopyFrom(body)
    turn, condition = f"{f.stem}/turn", f"{f.stem}/condition"
    states, picked = list(body.input[: -len(slices)]), list(body.input[-len(slices) :])
    nodes = []
    for source, value, axis, is_reversed in zip(slices, picked, axes, reverses, strict=True):
        place = turn
        if is_reversed:
            place = f"{value.name}/place"
            nodes.append(helper.make_node("Sub", [last, turn], [place]))
        nodes.append(helper.make_node("Gather", [source, place], [value.name], axis=axis))
    nodes.append(helper.make_node("Identity", [condition], [f"{condition}/next"]))
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info(turn, TensorProto.INT64, []))
    graph.input.append(helper.make_tensor_value_info(condition, TensorProto.BOOL, []))
    graph.input.extend(states)
    del graph.node[:]
    graph.node.extend([*nodes, *body.node])
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(f"{condition}/next", TensorProto.BOOL, []))
    graph.output.extend(body.output)
    return graph


def _placed(f: Fragment, stack: str, axis: int, rank: int | None, output: str, *, is_reversed: bool) -> None:
    """Write what a loop stacked as the Scan's result, in its direction and along its axis."""
    if is_reversed:
        ends = f.constant([np.iinfo(np.int64).min])
        back = f.constant([-1])
        stack = f.node("Slice", stack, back, ends, f.constant([0]), back, output="" if axis else output)
    if axis and rank is not None:
        order = list(range(1, rank + 1))
        order.insert(axis % (rank + 1), 0)
        f.node("Transpose", stack, perm=order, output=output)
    elif not is_reversed:
        f.node("Identity", stack, output=output)
