"""Streamlining: scales and shifts move past linear operators, until what is left between quantizers is integer compute.

Source: Umuroglu and Jahre, "Streamlined Deployment for Quantized Neural Networks", arXiv 1709.04060.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, helper

from forge_pipeline.passes.contract import NoOptions, Tolerance, Transformation, verified
from forge_pipeline.passes.graph import Array, Graph
from forge_pipeline.passes.nodes import attribute, is_op

HOMOGENEOUS = ("Relu", "LeakyRelu", "PRelu", "MaxPool", "GlobalMaxPool")  # f(s x) = s f(x) for s > 0
LINEAR = ("Conv", "MatMul", "AveragePool", "GlobalAveragePool")
MOVING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather")  # elements stay what they are


@verified(Tolerance())
class MoveScales(Transformation[NoOptions]):
    """Move ``Mul`` by one number below what reads it: linear operators without bias, Relu and pooling, reshapes.

    A factor below a Conv or MatMul, beside the products of the weights' own scale, is one that merge-scales and the
    next quantizer can take. Only one number for the whole tensor: that commutes with every linear operator.
    """

    def call(self, graph: Graph) -> int:
        """Every move brings one factor nearer to the outputs, so repeating comes to an end."""
        return sum(_below(graph, node) for node in graph.nodes if node in graph)


def _below(graph: Graph, node: NodeProto) -> bool:
    if not is_op(node, *HOMOGENEOUS, *LINEAR, *MOVING) or len([name for name in node.output if name]) != 1:
        return False
    if is_op(node, "Conv") and len(node.input) > 2 and node.input[2]:
        return False
    found = _factor(graph, node.input[0])
    if found is None:
        return False
    scale, source, name = found
    if is_op(node, *HOMOGENEOUS) and not float(scale.reshape(())) > 0:
        return False
    if graph.elem_type(source) == 0 or graph.rank(source) is None or scale.ndim > (graph.rank(node.output[0]) or 0):
        return False
    maker = graph.producer(node.input[0])
    if maker is None:
        return False
    graph.set_input(node, 0, source)
    graph.remove(maker)
    target = node.output[0]
    moved = graph.fresh(f"{target}_unscaled")
    graph.set_output(node, 0, moved)
    graph.add_node(helper.make_node("Mul", [moved, name], [target]))
    return True


def _factor(graph: Graph, name: str) -> tuple[Array, str, str] | None:
    """Return the number that a value is multiplied by, what is multiplied, and the number's name."""
    maker = graph.producer(name)
    if maker is None or not is_op(maker, "Mul") or graph.only_user(name) is None:
        return None
    for operand in (0, 1):
        array = graph.array(maker.input[operand])
        if array is not None and array.size == 1 and array.dtype.kind == "f":
            if graph.rank(maker.input[1 - operand]) is None:
                return None
            return array, str(maker.input[1 - operand]), str(maker.input[operand])
    return None


@verified(Tolerance())
class IntegerProducts(Transformation[NoOptions]):
    """MatMul of two dequantized values -> MatMulInteger, Cast and one Mul: the compute is in integers.

    For 8-bit types and one scale a tensor on the left, one a tensor or a column on the right. Exact in the product;
    the one Mul rounds where the two dequantizations did.
    """

    def call(self, graph: Graph) -> int:
        """Rewrite each product whose operands are both quantized."""
        if graph.opset() < 10:
            return 0
        return sum(_integer_product(graph, node) for node in graph.nodes if is_op(node, "MatMul"))


def _integer_product(graph: Graph, node: NodeProto) -> bool:
    makers = [graph.producer(name) for name in node.input]
    left, right = makers
    if left is None or right is None or not is_op(left, "DequantizeLinear") or not is_op(right, "DequantizeLinear"):
        return False
    scales = [graph.array(maker.input[1]) for maker in (left, right)]
    kinds = {graph.elem_type(maker.input[0]) for maker in (left, right)}
    if any(scale is None for scale in scales) or not kinds <= {TensorProto.UINT8, TensorProto.INT8}:
        return False
    a, b = (np.asarray(scale).astype(np.float64) for scale in scales)
    rank = graph.rank(right.input[0])
    per_column = b.ndim == 1 and b.size > 1
    if (
        a.size != 1
        or rank is None
        or (b.size != 1 and not (per_column and attribute(right, "axis", 1) % rank == rank - 1))
    ):
        return False
    zeros = [maker.input[2] if len(maker.input) > 2 else "" for maker in (left, right)]
    if any(name and graph.array(name) is None for name in zeros) or (per_column and rank != 2):
        return False
    inputs = [left.input[0], right.input[0], *zeros]
    while inputs and not inputs[-1]:
        inputs.pop()
    dtype = np.asarray(scales[0]).dtype
    factor = graph.add_constant((a.reshape(()) * b).astype(dtype), f"{node.output[0]}_scale")
    product = graph.add("MatMulInteger", inputs, f"{node.output[0]}_int32")
    wide = graph.add("Cast", [product.output[0]], f"{node.output[0]}_wide", to=helper.np_dtype_to_tensor_dtype(dtype))
    graph.replace(node, "Mul", [wide.output[0], factor])
    return True
