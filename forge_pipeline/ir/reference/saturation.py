"""Integer products that mean the same on every CPU.

On an x86 without VNNI, ONNX Runtime multiplies unsigned by signed bytes with vpmaddubsw, optimized or not: pairs of
products are added in 16 bits, which saturate. For unsigned weights it widens first. So signed weights w with the zero
point z become w + 128 with z + 128: the same product, to the last bit, and none saturates.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from forge_pipeline.ir.external_data.mapped import array_of, tensor_of
from forge_pipeline.ir.qdq.qoperator import write_out
from forge_pipeline.ir.traversal import every_node

WEIGHTS = {"MatMulInteger": 1, "QLinearMatMul": 3, "QLinearConv": 3, "QGemm": 3}
ZERO_POINTS = {"MatMulInteger": 3, "QLinearMatMul": 5, "QLinearConv": 5, "QGemm": 5}
"""Where the operators that multiply bytes have their weights and the weights' zero point (optional in the first)."""

IMAGE_ZERO = 2
"""Where all of them have the activations' zero point, whose type is theirs."""

SHIFT = 128
UNSIGNED = "_forge_unsigned"


def without_saturation(model: ModelProto) -> ModelProto:
    """Return a model whose integer products have no signed constants: itself where it has no such products."""
    if not any(node.op_type in WEIGHTS for node in every_node(model)):
        return model
    parsed = ModelProto()
    parsed.CopyFrom(model)
    if any(_has_signed_activations(graph) for graph in _graphs(parsed.graph)):
        parsed = write_out(parsed)
    for graph in _graphs(parsed.graph):
        _make_unsigned(graph, parsed.graph)
    return parsed


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):  # to write to one that is absent would make it present
                yield from _graphs(attribute.g)
            for inner in attribute.graphs:
                yield from _graphs(inner)


def _has_signed_activations(graph: GraphProto) -> bool:
    signed = {tensor.name for tensor in graph.initializer if tensor.data_type == TensorProto.INT8}
    return any(node.op_type in WEIGHTS and _input(node, IMAGE_ZERO) in signed for node in graph.node)


def _make_unsigned(graph: GraphProto, outer: GraphProto) -> None:
    """Replace the weights of a graph, which may be those of the main graph around it."""
    constants = {tensor.name: tensor for tensor in (*outer.initializer, *graph.initializer)}
    added: dict[str, TensorProto] = {}
    for node in graph.node:
        weight = constants.get(_input(node, WEIGHTS.get(node.op_type, -1)))
        if weight is None or weight.data_type != TensorProto.INT8:
            continue
        image_zero = constants.get(_input(node, IMAGE_ZERO))
        if image_zero is not None and image_zero.data_type == TensorProto.INT8:
            continue  # left by ``write_out``: products of two signed operands have kernels of their own
        place, zero_place = WEIGHTS[node.op_type], ZERO_POINTS[node.op_type]
        name = _input(node, zero_place)
        zero = numpy_helper.from_array(np.int8(0), f"{weight.name}_zero") if not name else constants.get(name)
        if zero is None:
            continue  # computed while the model runs: it says of itself what it is
        node.input.extend([""] * (zero_place + 1 - len(node.input)))
        for where, tensor in ((place, weight), (zero_place, zero)):
            moved = tensor.name + UNSIGNED
            shifted = (array_of(tensor).astype(np.int16) + SHIFT).astype(np.uint8)
            added[moved] = tensor_of(shifted, moved)
            node.input[where] = moved
    graph.initializer.extend(added.values())


def _input(node: NodeProto, place: int) -> str:
    return str(node.input[place]) if 0 <= place < len(node.input) else ""
