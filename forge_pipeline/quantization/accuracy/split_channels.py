"""Split tensors: a convolution becomes two, each with half of the output channels and a weight scale of its own.

The cut is where the two scales together lose least. An activation behind the convolution is applied to both halves,
so that each is rounded once; a convolution whose result is added to something is left whole, for the same reason.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper

from forge_pipeline.passes.quantization.split_channels import best_cut
from forge_pipeline.quantization.network import Network, attribute, layer

ACTIVATIONS = frozenset({"Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh"})


def split(network: Network) -> Network | None:
    """Return the network with every convolution split that can be; None where none can."""
    model = network.copy().model
    graph = model.graph
    nodes: list[NodeProto] = []
    arrays: dict[str, NDArray[Any]] = {}
    absorbed: set[str] = set()
    for node in network.nodes:
        if node.output[0] in absorbed:
            continue
        following = _splittable(network, node)
        if following is None:
            nodes.append(node)
        else:
            nodes.extend(_halves(network, node, following, arrays))
            absorbed.update(item.output[0] for item in following)
    if not arrays:
        return None
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in sorted(arrays.items()))
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used or tensor.name in network.outputs]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return Network(model)


def _splittable(network: Network, node: NodeProto) -> list[NodeProto] | None:
    """The activation behind a convolution that can be split, as a list; None for what is not to be split."""
    if node.op_type != "Conv" or attribute(node, "group", 1) != 1 or node.input[1] not in network.constants:
        return None
    if network.array(node.input[1]).shape[0] < 2 or any(
        name and name not in network.constants for name in node.input[2:]
    ):
        return None
    readers = network.consumers.get(node.output[0], [])
    if len(readers) != 1 or node.output[0] in network.outputs:
        return []
    reader = readers[0]
    if reader.op_type in ("Add", "Sub", "Mul"):
        return None
    alone = reader.op_type in ACTIVATIONS and all(name in network.constants for name in reader.input[1:] if name)
    return [reader] if alone else []


def _halves(
    network: Network, node: NodeProto, following: list[NodeProto], arrays: dict[str, NDArray[Any]]
) -> list[NodeProto]:
    weights = network.array(node.input[1])
    cut = best_cut(weights)
    result = (following or [node])[-1].output[0]
    made, parts = [], []
    for half, rows in enumerate((slice(None, cut), slice(cut, None))):
        last = f"{result}_half{half}"
        conv = NodeProto()
        conv.CopyFrom(node)
        conv.name = f"{layer(node)}_half{half}"
        conv.output[0] = f"{node.output[0]}_half{half}"
        for index in range(1, len(node.input)):
            if node.input[index]:
                conv.input[index] = f"{node.output[0]}_{index}_half{half}"
                arrays[conv.input[index]] = np.ascontiguousarray(network.array(node.input[index])[rows])
        made.append(conv)
        for item in following:
            activation = NodeProto()
            activation.CopyFrom(item)
            activation.name = f"{layer(item)}_half{half}"
            activation.input[0], activation.output[0] = conv.output[0], last
            made.append(activation)
        parts.append(made[-1].output[0])
    return [*made, helper.make_node("Concat", parts, [result], f"{layer(node)}_joined", axis=1)]
