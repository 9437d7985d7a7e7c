"""Weights in two halves, each of which a quantizer gives a scale of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from forge_pipeline.passes.contract import NoOptions, Tolerance, Transformation, verified
from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.nodes import attribute, clone, is_op

JOINED = "_joined"


@verified(Tolerance())
class SplitTensors(Transformation[NoOptions]):
    """A convolution by constant weights -> two, each with a part of the output channels, and a Concat.

    The cut is where two scales together lose least. What reads the result is not moved; quantization does that where
    it splits by itself (``quantize.split_tensors``). Grouped convolutions stay, and those split already.
    """

    def call(self, graph: Graph) -> int:
        """Split each convolution whose result is not a half already."""
        return sum(_halve(graph, node) for node in graph.nodes if is_op(node, "Conv"))


def best_cut(weights: NDArray[Any]) -> int:
    """Return the channel before which to cut: least sum over both halves of size times squared largest weight."""
    largest = np.abs(weights.reshape(weights.shape[0], -1)).max(axis=1).astype(np.float64)
    before, after = np.maximum.accumulate(largest)[:-1], np.maximum.accumulate(largest[::-1])[::-1][1:]
    sizes = np.arange(1, len(largest))
    cost = sizes * before**2 + (len(largest) - sizes) * after**2
    middle = (len(largest) - 1) // 2
    return int(sizes[middle] if cost[middle] == cost.min() else sizes[int(cost.argmin())])


def _halve(graph: Graph, node: NodeProto) -> bool:
    arrays = [graph.array(name) for name in node.input[1:]]
    weight = arrays[0]
    if weight is None or weight.shape[0] < 2 or attribute(node, "group", 1) != 1 or any(a is None for a in arrays):
        return False
    if any(is_op(user, "Concat") and user.name.endswith(JOINED) for user in graph.users(node.output[0])):
        return False
    cut, result = best_cut(weight), node.output[0]
    graph.remove(node)
    parts = []
    for half, rows in enumerate((slice(None, cut), slice(cut, None))):
        part = clone(node)
        part.name, part.output[0] = "", graph.fresh(f"{result}_half{half}")
        for index, array in enumerate(arrays, start=1):
            part.input[index] = graph.add_constant(np.asarray(array)[rows], f"{result}_{index}_half{half}")
        parts.append(graph.add_node(part).output[0])
    graph.add_node(helper.make_node("Concat", parts, [result], graph.fresh(f"{result}{JOINED}"), axis=1))
    return True
