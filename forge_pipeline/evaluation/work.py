"""What a model has to compute at least: products of floats and of bytes, and the bytes that it reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

from forge_pipeline.ir.external_data.writer import size
from forge_pipeline.ir.reference.interpreter import Interpreter

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import NodeProto

    from forge_pipeline.ir import ONNXModule

Values = Mapping[str, "NDArray[Any]"]

PRODUCTS: Final = ("Conv", "ConvTranspose", "MatMul", "Gemm")
INTEGER: Final = ("ConvInteger", "MatMulInteger")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Operations of one call, where a product and its sum are two; ``bytes`` of weights, inputs and outputs, once.

    Convolutions, matrix products and fully connected layers count, of the graph itself: what the rest costs is a part
    of what a measured time has above its bound.
    """

    float_operations: int
    byte_operations: int
    bytes: int


def work_of(model: ONNXModule, feed: Mapping[str, NDArray[Any]]) -> Work:
    """Return the work of one call with ``feed``, whose shapes decide; the memory of what products read and make.

    Raises ModelError and DataError where ONNX Runtime refuses the model, or the feed.
    """
    graph = model.light.graph
    products = [node for node in graph.node if node.op_type in (*PRODUCTS, *INTEGER)]
    constants = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    made = {name for node in graph.node for name in node.output}
    taps = [name for node in products for name in (*node.input[:2], node.output[0]) if name in made]
    values = Interpreter(model.light, where="model", taps=taps)(feed)
    shapes = constants | {name: tuple(value.shape) for name, value in {**feed, **values}.items()}
    of_bytes = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    counts = {True: 0, False: 0}
    for node in products:
        is_byte = node.op_type in INTEGER or of_bytes.issuperset(node.input[:2])
        counts[is_byte] += 2 * _products(node, shapes)
    moved = sum(int(value.nbytes) for value in (*feed.values(), *(values[name] for name in model.output_names)))
    return Work(float_operations=counts[False], byte_operations=counts[True], bytes=size(model) + moved)


def _products(node: NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    left, right, made = (shapes[name] for name in (node.input[0], node.input[1], node.output[0]))
    if node.op_type == "ConvTranspose":  # each of its inputs meets every weight of its channel
        return prod(left) * prod(right[1:])
    if node.op_type in ("Conv", "ConvInteger"):
        return prod(made) * prod(right[1:])
    transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return prod(made) * left[0 if transposed else -1]
