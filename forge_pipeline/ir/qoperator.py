"""Operators on integers, as ONNX Runtime's quantizer writes them, spelt out as pairs of Quantize- and DequantizeLinear.

QLinearConv is a convolution of dequantized values whose result is quantized: that is its definition (ONNX operator
reference, QLinearConv-10, QLinearMatMul-21; ONNX Runtime's ContribOperators.md for the domain com.microsoft). Written
out so, a model needs no integer operators of its own, and whoever computes pairs in integers computes it as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper

from forge_pipeline.ir import qdynamic
from forge_pipeline.ir.order import every_node
from forge_pipeline.ir.qdq import Operand, Unusual, Writer

MICROSOFT = "com.microsoft"
STANDARD = ("", "ai.onnx")
PER_CHANNEL = 13
"""The operator set from which on DequantizeLinear may have several scales."""
LEFT_ALONE = frozenset({"channels_last", "opset"})
"""Attributes of com.microsoft's operators that ONNX's have not."""

Rule = Callable[[Writer, NodeProto], None]


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """Return a node's attributes by name."""
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


def given(node: NodeProto, place: int) -> str:
    """Return the name of an input, empty where it is absent."""
    return str(node.input[place]) if place < len(node.input) else ""


def operand(node: NodeProto, place: int) -> Operand:
    """Return an integer value among the inputs."""
    return given(node, place), given(node, place + 1), given(node, place + 2)


def _store(writer: Writer, node: NodeProto, real: str, place: int, axis: int | None = None) -> None:
    """Store a result by the scale and zero point among the inputs, the latter by default of the first input's type."""
    affine = writer.affine(given(node, place), given(node, place + 1), node.input[0])
    writer.store(real, affine, node.output[0], axis)


def _rest(node: NodeProto) -> dict[str, Any]:
    found = attributes_of(node)
    if found.get("channels_last", 0):
        raise Unusual("channels last")
    return {name: value for name, value in found.items() if name not in LEFT_ALONE}


def _convolution(writer: Writer, node: NodeProto) -> None:
    x, weight = operand(node, 0), operand(node, 3)
    attributes, result = _rest(node), node.output[0]
    if not writer.is_one(x[1]):
        raise Unusual("an image of several scales")
    operands = [writer.real(x), writer.real(weight, axis=0)]
    if given(node, 8):
        operands.append(writer.sums(node.input[8], x[1], weight[1], axis=0))
    _store(writer, node, writer.node("Conv", operands, f"{result}/real", node.name, **attributes), 6)


def _product(writer: Writer, node: NodeProto) -> None:
    operands = [writer.real(operand(node, 0), axis=-2), writer.real(operand(node, 3), axis=-1)]
    _store(writer, node, writer.node("MatMul", operands, f"{node.output[0]}/real", node.name), 6, axis=-2)


def _gemm(writer: Writer, node: NodeProto) -> None:
    a, b, result, attributes = operand(node, 0), operand(node, 3), node.output[0], attributes_of(node)
    operands = [writer.real(a), writer.real(b, axis=0 if attributes.get("transB", 0) else 1)]
    if given(node, 6):
        factor = float(attributes.get("alpha", 1.0))
        axis = len(writer.shapes.get(node.input[6], (None,))) - 1
        operands.append(writer.sums(node.input[6], a[1], b[1], axis=axis, factor=factor))
    if given(node, 7):
        _store(writer, node, writer.node("Gemm", operands, f"{result}/real", node.name, **attributes), 7)
    else:
        writer.nodes.append(helper.make_node("Gemm", operands, [result], name=node.name, **attributes))


def _two(operator: str) -> Rule:
    def rule(writer: Writer, node: NodeProto) -> None:
        operands = [writer.real(operand(node, place)) for place in (0, 3)]
        _store(writer, node, writer.node(operator, operands, f"{node.output[0]}/real", node.name), 6)

    return rule


def _one(operator: str) -> Rule:
    def rule(writer: Writer, node: NodeProto) -> None:
        attributes, real = _rest(node), writer.real(operand(node, 0))
        _store(writer, node, writer.node(operator, [real], f"{node.output[0]}/real", node.name, **attributes), 3)

    return rule


def _softmax(writer: Writer, node: NodeProto) -> None:
    attributes, shape = attributes_of(node), writer.shapes.get(node.input[0])
    axis = attributes.get("axis", -1)
    is_last = axis == -1 or (shape is not None and axis == len(shape) - 1)
    if not is_last and (attributes.get("opset", 1) < 13) != (writer.opset < 13):
        raise Unusual("a softmax over axes as another operator set has them")
    real = writer.real(operand(node, 0))
    _store(writer, node, writer.node("Softmax", [real], f"{node.output[0]}/real", node.name, axis=axis), 3)


def _mean(writer: Writer, node: NodeProto) -> None:
    result, attributes = node.output[0], attributes_of(node)
    inputs = [writer.real(operand(node, 0))]
    if writer.opset >= 18 and "axes" in attributes:
        inputs.append(writer.constant(np.array(attributes.pop("axes"), np.int64), f"{result}/axes"))
    _store(writer, node, writer.node("ReduceMean", inputs, f"{result}/real", node.name, **attributes), 3)


def _concat(writer: Writer, node: NodeProto) -> None:
    reals = [writer.real(operand(node, place)) for place in range(2, len(node.input), 3)]
    real = writer.node("Concat", reals, f"{node.output[0]}/real", node.name, **attributes_of(node))
    writer.store(real, writer.affine(given(node, 0), given(node, 1), given(node, 2)), node.output[0])


def _where(writer: Writer, node: NodeProto) -> None:
    operands = [node.input[0], writer.real(operand(node, 1)), writer.real(operand(node, 4))]
    real = writer.node("Where", operands, f"{node.output[0]}/real", node.name)
    writer.store(real, writer.affine(given(node, 7), given(node, 8), node.input[1]), node.output[0])


def _pair(writer: Writer, node: NodeProto) -> None:
    """QuantizeLinear and DequantizeLinear of any domain become ONNX's own."""
    own = node
    if node.domain == MICROSOFT:
        kept = {name: value for name, value in attributes_of(node).items() if name == "axis"}
        own = helper.make_node(node.op_type, list(node.input), list(node.output), name=node.name, **kept)
    writer.nodes.append(own)
    if node.op_type == "QuantizeLinear" and given(node, 2) and writer.is_one(node.input[1]):
        writer.stored[node.output[0]] = writer.affine(node.input[1], node.input[2], "")


def _move(writer: Writer, node: NodeProto) -> None:
    """What only moves integers moves the floats that they stand for, and stores them as they were."""
    affine = writer.stored.get(node.input[0])
    sources = node.input if node.op_type == "Concat" else node.input[:1]
    names = [name for name in node.output if name]
    is_several = node.op_type == "Split"
    if affine is None or any(writer.stored.get(name) != affine for name in sources):
        raise Unusual("integers whose scale is not known")
    if len(names) > 1 and not is_several:
        raise Unusual("a second result")
    operands = [writer.real((name, affine.scale, affine.zero)) for name in sources]
    results = [writer.named(f"{name}/real") for name in names]
    moved = helper.make_node(node.op_type, [*operands, *node.input[len(sources) :]], results, name=node.name)
    moved.attribute.extend(node.attribute)
    writer.nodes.append(moved)
    for real, name in zip(results, names, strict=True):
        writer.store(real, affine, name)


MOVES = (
    "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Slice", "SpaceToDepth",
    "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
)  # fmt: skip

RULES: Mapping[tuple[str, str], Rule] = MappingProxyType(
    {
        ("", "QLinearConv"): _convolution,
        ("", "QLinearMatMul"): _product,
        **{("", name): _pair for name in ("QuantizeLinear", "DequantizeLinear")},
        **{("", name): _move for name in MOVES},
        **{(MICROSOFT, name): _pair for name in ("QuantizeLinear", "DequantizeLinear")},
        (MICROSOFT, "QGemm"): _gemm,
        (MICROSOFT, "QLinearAdd"): _two("Add"),
        (MICROSOFT, "QLinearAveragePool"): _one("AveragePool"),
        (MICROSOFT, "QLinearConcat"): _concat,
        (MICROSOFT, "QLinearConv"): _convolution,
        (MICROSOFT, "QLinearGlobalAveragePool"): _one("GlobalAveragePool"),
        (MICROSOFT, "QLinearLeakyRelu"): _one("LeakyRelu"),
        (MICROSOFT, "QLinearMul"): _two("Mul"),
        (MICROSOFT, "QLinearReduceMean"): _mean,
        (MICROSOFT, "QLinearSigmoid"): _one("Sigmoid"),
        (MICROSOFT, "QLinearSoftmax"): _softmax,
        (MICROSOFT, "QLinearWhere"): _where,
        (MICROSOFT, "DynamicQuantizeMatMul"): qdynamic.quantized_product,
        (MICROSOFT, "MatMulIntegerToFloat"): qdynamic.product_to_float,
    }
)
"""How to write out each operator, by domain and name."""

KNOWN = {
    (MICROSOFT, "DynamicQuantizeLSTM"): "its state is quantized anew at every step",
}
"""Why some operators of quantized models are not written out at all."""


def written_out(model: ModelProto) -> ModelProto:
    """Return ``model`` without the operators of RULES, where they are of a kind that can be written out.

    ``model`` itself where nothing is to be written out; it is left as it is. What cannot be written out stays.
    """
    writer, _ = _written(model)
    return model if writer is None or writer.nodes == list(model.graph.node) else _assembled(model, writer)


def in_standard(model: ModelProto) -> ModelProto:
    """Return ``model`` without com.microsoft's quantized operators, where they can be written out.

    Before operator set 13 ONNX has no pairs with a scale for each channel: such a model stays as it is.
    """
    opset = next((item.version for item in model.opset_import if item.domain in STANDARD), 1)
    if opset < PER_CHANNEL or not any(node.domain == MICROSOFT for node in model.graph.node):
        return model
    return written_out(model)


def reasons(model: ModelProto) -> dict[str, str]:
    """Return why nodes of a model were not written out, by the name of their first result."""
    return _written(model)[1]


def _written(model: ModelProto) -> tuple[Writer | None, dict[str, str]]:
    """Return a graph written anew, None where it has no quantized values, and why some nodes are as they were."""
    if not any(_is_quantized(node) for node in model.graph.node):
        return None, {}
    opset = next((item.version for item in model.opset_import if item.domain in STANDARD), 1)
    writer, why = Writer.of(model.graph, opset), dict[str, str]()
    scaled = qdynamic.scaled_products(writer, model.graph)
    inner = {name for product in scaled.values() for name in product.inner}
    for node in model.graph.node:
        domain = "" if node.domain in STANDARD else node.domain
        if node.output[0] in inner:
            continue
        if node.output[0] in scaled:
            scaled[node.output[0]].write(writer)
            continue
        if (domain, node.op_type) not in RULES:
            why |= {node.output[0]: KNOWN[domain, node.op_type]} if (domain, node.op_type) in KNOWN else {}
            writer.nodes.append(node)
            continue
        before = len(writer.nodes)
        try:
            RULES[domain, node.op_type](writer, node)
        except Unusual as reason:
            del writer.nodes[before:]
            writer.nodes.append(node)
            why[node.output[0]] = str(reason)
    return writer, why


def _is_quantized(node: NodeProto) -> bool:
    return (
        node.domain == MICROSOFT
        or node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear")
        or (node.op_type.startswith("QLinear"))
    )


def _assembled(model: ModelProto, writer: Writer) -> ModelProto:
    """Return a copy of ``model`` with the nodes and the constants of ``writer``; weights are not copied twice."""
    written = ModelProto()
    written.CopyFrom(model)
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in writer.nodes]
    del written.graph.node[:]
    written.graph.node.extend(nodes)
    written.graph.initializer.extend(writer.tensors)
    if not any(node.domain == MICROSOFT for node in every_node(written)):
        opsets = [entry for entry in model.opset_import if entry.domain != MICROSOFT]
        del written.opset_import[:]
        written.opset_import.extend(opsets)
    return written
