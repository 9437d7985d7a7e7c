"""Products of values that are quantized when the model runs, spelt out as pairs.

``quantize_dynamic`` of ONNX Runtime writes DynamicQuantizeLinear, MatMulInteger or ConvInteger, Cast to float, and Mul
by the product of both scales. The same sums and the same factor are those of a product of dequantized values.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper

from forge_pipeline.ir.contrib.emitter import Emitter
from forge_pipeline.ir.contrib.writer import Array, Unusual, Writer, inputs_of
from forge_pipeline.ir.qdq import rounded_lstm
from forge_pipeline.ir.qdq.rounded_lstm import Weights
from forge_pipeline.ir.recurrent import GATES, STATES

INTEGER = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
"""Operators on integers with int32 results, and the same on floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A product of integers whose sums are scaled: by a DynamicQuantizeLinear's scale and a constant one.

    ``inner`` are the results of the nodes between, which nobody else reads.
    """

    product: NodeProto
    inner: tuple[str, ...]
    scale: str
    weight_scale: str
    result: str

    def write(self, writer: Writer) -> None:
        """Write it as a product of dequantized values."""
        a, b, a_zero, b_zero = (*self.product.input, "", "")[:4]
        operator = INTEGER[self.product.op_type]
        weight_axis = 0 if operator == "Conv" else -1
        scale = writer.array(self.weight_scale)
        assert scale is not None  # noqa: S101 - found as a constant
        weight_scale = writer.constant(scale.astype(np.float32).reshape(-1), f"{self.result}/weight_scale")
        operands = [writer.real((a, self.scale, a_zero)), writer.real((b, weight_scale, b_zero), axis=weight_axis)]
        node = helper.make_node(operator, operands, [self.result], name=self.product.name)
        node.attribute.extend(self.product.attribute)
        writer.add(node)


def scaled_products(writer: Writer, graph: GraphProto) -> dict[str, Scaled]:
    """Return scaled products by the name of their result."""
    readers = Counter(name for node in graph.node for name in node.input)
    readers.update(value.name for value in graph.output)
    for node in graph.node:  # subgraphs may read anything
        if any(item.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for item in node.attribute):
            return {}
    producers = {name: node for node in graph.node for name in node.output}
    found: dict[str, Scaled] = {}
    for node in graph.node:
        scaled = _scaled(writer, node, producers, readers)
        if scaled is not None:
            found[node.output[0]] = scaled
    return found


def _scaled(writer: Writer, node: NodeProto, producers: dict[str, NodeProto], readers: Counter[str]) -> Scaled | None:
    """Match Mul(Cast(product), Mul(scale, constant)), or Mul(Mul(Cast(product), scale), constant)."""
    if node.op_type != "Mul":
        return None
    factors, inner = list(node.input), list[str]()
    for name in node.input:
        maker = producers.get(name)
        if maker is None or maker.op_type != "Mul" or len(factors) > 2:
            continue
        if any(_is_cast(producers.get(part)) for part in maker.input):
            if readers[name] != 1:
                return None
            inner.append(name)
        factors.remove(name)
        factors.extend(maker.input)
    casts = [name for name in factors if _is_cast(producers.get(name)) and readers[name] == 1]
    if len(casts) != 1 or len(factors) != 3:
        return None
    factors.remove(casts[0])
    cast = producers[casts[0]]
    product = producers.get(cast.input[0])
    to_float = next((item.i for item in cast.attribute if item.name == "to"), 0) == TensorProto.FLOAT
    if product is None or product.op_type not in INTEGER or not to_float or readers[product.output[0]] != 1:
        return None
    measured = producers.get(product.input[0])
    if measured is None or measured.op_type != "DynamicQuantizeLinear" or measured.output[1] not in factors:
        return None
    (weight_scale,) = (name for name in factors if name != measured.output[1]) if len(set(factors)) == 2 else ("",)
    array, weight = writer.array(weight_scale), writer.constants.get(product.input[1])
    if array is None or weight is None or (len(product.input) > 2 and product.input[2] != measured.output[2]):
        return None
    if not _goes_with(array.shape, tuple(weight.dims), product.op_type):
        return None
    inner += [product.output[0], cast.output[0]]
    return Scaled(
        product=product, inner=tuple(inner), scale=measured.output[1], weight_scale=weight_scale, result=node.output[0]
    )


def _is_cast(node: NodeProto | None) -> bool:
    return node is not None and node.op_type == "Cast"


def _goes_with(scale: tuple[int, ...], weight: tuple[int, ...], operator: str) -> bool:
    """Return whether a scale is one number, or one for each column or filter."""
    if int(np.prod(scale)) == 1:
        return True
    if operator == "ConvInteger":
        return scale in ((weight[0], 1, 1), (1, weight[0], 1, 1)) and len(weight) == 4
    return len(weight) == 2 and scale in ((weight[1],), (1, weight[1]))


def quantized_product(writer: Writer, node: NodeProto) -> None:
    """Write out DynamicQuantizeMatMul (A, B, b_scale, b_zero_point, bias)."""
    a, b, scale, zero, bias = inputs_of(node, 5)
    left = _measured(writer, a, node.output[0])
    writer.matmul(node, left, writer.real((b, scale, zero), axis=-1), bias)


def product_to_float(writer: Writer, node: NodeProto) -> None:
    """Write out MatMulIntegerToFloat (A, B, a_scale, b_scale, a_zero_point, b_zero_point, bias)."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = inputs_of(node, 7)
    writer.matmul(node, writer.real((a, a_scale, a_zero)), writer.real((b, b_scale, b_zero), axis=-1), bias)


def _measured(writer: Writer, x: str, result: str) -> str:
    """Return floats as the floats that their bytes stand for, whose scale is measured."""
    names = [writer.named(f"{result}/{part}") for part in ("integers", "scale", "zero")]
    writer.add(helper.make_node("DynamicQuantizeLinear", [x], names, name=f"{result}/measured"))
    return writer.node("DequantizeLinear", names, f"{result}/inputs")


def recurrent(writer: Writer, node: NodeProto) -> None:
    """Write out DynamicQuantizeLSTM (X, W, R, B, sequence_lens, initial_h, initial_c, P, and how W and R are stored).

    Its state is rounded to bytes at every step (`rounded_lstm`). Where a step is of another kind than most, with
    peepholes, lengths or other activations, the state stays in float, the more exact of the two.
    """
    if not any(node.output):
        raise Unusual("no results")
    op = Emitter(writer, node)
    if rounded_lstm.is_usual(op):
        _with_rounded_state(op)
    else:
        _with_exact_state(writer, node)


def _with_rounded_state(op: Emitter) -> None:
    """Write a product of all inputs for each direction, and the steps."""
    writer, hidden, x = op.writer, op.integer("hidden_size"), op.input(0)
    real = _measured(writer, x, op.base)
    inputs, states = (_matrices(op, place, first) for place, first in ((1, 8), (2, 10)))
    bias = op.input(3) and op.array(op.input(3), "a bias")
    products, before = list[str](), list[list[str]]()
    for direction, weight in enumerate(inputs):
        product = op("MatMul", real, writer.real((weight.integers, weight.scale, weight.zero), axis=1))
        if isinstance(bias, np.ndarray):
            width = GATES["LSTM"] * hidden
            product = op("Add", product, op.constant(bias[direction, :width] + bias[direction, width:]))
        products.append(product)
        given = [op.input(place) for place in STATES["LSTM"]]
        before.append(
            [op("Gather", state, op.index(direction), axis=0) if state else _zeros(op, x, hidden) for state in given]
        )
    rounded_lstm.write(op, products, states, before)


def _zeros(op: Emitter, x: str, hidden: int) -> str:
    """Return a state (batch, hidden) of zeros, for inputs (steps, batch, size)."""
    shape = op.concat(op.length(x, 1), op.integers(hidden), axis=0)
    return op("ConstantOfShape", shape, value=helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]))


def _matrices(op: Emitter, place: int, first: int) -> list[Weights]:
    """Return weights (directions, rows, columns) as a matrix for each direction, with its scale and its zero point."""
    weight, (scale, zero) = op.input(place), (op.input(first), op.input(first + 1))
    integers, factors, points = _known(op.writer, weight, scale, zero)
    directions, _, columns = integers.shape
    found = []
    for direction in range(directions):
        parts = [array.reshape(directions, -1)[direction] for array in (factors, points)]
        parts = [part.reshape(()) if part.size == 1 else part for part in parts]
        if parts[0].ndim > parts[1].ndim:
            parts[1] = np.full(columns, parts[1])
        found.append(
            Weights(
                integers=op.writer.large(np.ascontiguousarray(integers[direction]), f"{weight}/{direction}"),
                scale=op.constant(np.ascontiguousarray(parts[0])),
                zero=op.constant(np.ascontiguousarray(parts[1])),
            )
        )
    return found


def _with_exact_state(writer: Writer, node: NodeProto) -> None:
    """Write an LSTM of floats."""
    others = inputs_of(node, 12)
    x, w, r = others[:3]
    result, given = next(name for name in node.output if name), others[3:8]
    operands = [_measured(writer, x, result)]
    for weight, (scale, zero) in ((w, others[8:10]), (r, others[10:12])):
        operands.append(_of_directions(writer, weight, scale, zero))
    while given and not given[-1]:
        given.pop()
    layer = helper.make_node("LSTM", [*operands, *given], list(node.output), name=node.name)
    layer.attribute.extend(node.attribute)
    writer.add(layer)


def _of_directions(writer: Writer, weight: str, scale: str, zero: str) -> str:
    """Return weights (directions, columns, rows) as floats with rows before columns.

    A scale for each direction is one of the first axis; one for each row too makes every direction a matrix by itself.
    """
    integers, factors, points = _known(writer, weight, scale, zero)
    directions, columns, rows = integers.shape
    turned = np.ascontiguousarray(integers.swapaxes(1, 2))
    if factors.size == points.size == directions:
        parts = [writer.constant(array.reshape(-1), weight) for array in (factors, points)]
        return writer.node("DequantizeLinear", [writer.large(turned, weight), *parts], f"{weight}/real", axis=0)
    shape = (directions, rows)
    factors, points = (np.broadcast_to(array.reshape(directions, -1), shape) for array in (factors, points))
    target, reals = writer.constant(np.array([1, rows, columns], np.int64), f"{weight}/shape"), []
    for direction in range(directions):
        parts = [writer.constant(np.ascontiguousarray(array[direction]), weight) for array in (factors, points)]
        real = writer.node(
            "DequantizeLinear", [writer.large(turned[direction], weight), *parts], f"{weight}/real", axis=0
        )
        reals.append(writer.node("Reshape", [real, target], f"{weight}/way"))
    return writer.node("Concat", reals, f"{weight}/ways", axis=0)


def _known(writer: Writer, weight: str, scale: str, zero: str) -> tuple[Array, Array, Array]:
    """Return weights (directions, columns, rows), their scales as float32, and their zero points."""
    integers, factors, points = writer.weight(weight), writer.array(scale), writer.array(zero)
    if factors is None or points is None:
        raise Unusual("scales that are no constants")
    if integers.ndim != 3 or any(array.size not in (len(integers), integers[:, 0].size) for array in (factors, points)):
        raise Unusual(f"{factors.size} scales and {points.size} zero points of weights {integers.shape}")
    return integers, factors.astype(np.float32), points
