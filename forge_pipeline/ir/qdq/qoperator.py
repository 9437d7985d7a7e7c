"""Operators on integers, as ONNX Runtime's quantizer writes them, spelt out as pairs of Quantize- and DequantizeLinear.

QLinearConv is a convolution of dequantized values whose result is quantized: that is its definition (ONNX operator
reference, QLinearConv-10, QLinearMatMul-21; ONNX Runtime's ContribOperators.md for the domain com.microsoft). Written
out so, a model needs no integer operators of its own, and whoever computes pairs in integers computes it as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper

from forge_pipeline.ir.qdq import block_quantized, data_movement, dynamic, fused, nhwc, signature
from forge_pipeline.ir.qdq.writer import MICROSOFT, Operand, Unusual, Writer, attributes_of, given
from forge_pipeline.ir.traversal import every_node

STANDARD = ("", "ai.onnx")
LEFT_ALONE = frozenset({"channels_last", "opset"})
"""Attributes of com.microsoft's operators that ONNX's have not."""

Rule = Callable[[Writer, NodeProto], None]


def operand(node: NodeProto, place: int) -> Operand:
    """Return an integer value among the inputs."""
    return given(node, place), given(node, place + 1), given(node, place + 2)


def _store(writer: Writer, node: NodeProto, real: str, place: int, axis: int | None = None) -> None:
    """Store a result by the scale and zero point among the inputs, the latter by default of the first input's type."""
    affine = writer.affine(given(node, place), given(node, place + 1), node.input[0])
    writer.store(real, affine, node.output[0], axis)


def _rest(node: NodeProto) -> dict[str, Any]:
    return {name: value for name, value in attributes_of(node).items() if name not in LEFT_ALONE}


def _is_last(writer: Writer, node: NodeProto, *sized: str) -> bool:
    """Return whether channels are the last axis; ``sized`` are values that have as many axes as the image.

    Where nothing says how many these are there are four: ONNX refuses to transpose other ones so.
    """
    attributes = attributes_of(node)
    is_last = bool(attributes.get("channels_last", 0))
    ranks = {len(writer.shapes[name]) for name in sized if name in writer.shapes}
    if "kernel_shape" in attributes:
        ranks.add(len(attributes["kernel_shape"]) + 2)
    if is_last and ranks - {nhwc.RANK}:
        raise Unusual("channels last, over other than two axes")
    return is_last


def _convolution(writer: Writer, node: NodeProto) -> None:
    x, weight = operand(node, 0), operand(node, 3)
    attributes, result = _rest(node), node.output[0]
    if not writer.is_one(x[1]):
        raise Unusual("an image of several scales")
    is_last = _is_last(writer, node, weight[0])
    operands = [nhwc.real(writer, x) if is_last else writer.real(x), writer.real(weight, axis=0)]
    if given(node, 8):
        operands.append(writer.sums(node.input[8], x[1], weight[1], axis=0))
    real = writer.node("Conv", operands, f"{result}/real", node.name, **attributes)
    if is_last:
        nhwc.store(writer, real, writer.affine(given(node, 6), given(node, 7), node.input[0]), result)
    else:
        _store(writer, node, real, 6)


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
        operands = [operand(node, place) for place in (0, 3)]
        affine = writer.affine(given(node, 6), given(node, 7), node.input[0])

        def made(reals: list[str]) -> str:
            return writer.node(operator, reals, f"{node.output[0]}/real", node.name)

        if not nhwc.elementwise(writer, node, operands, affine, made):
            writer.store(made([writer.real(item) for item in operands]), affine, node.output[0])

    return rule


def _one(operator: str) -> Rule:
    def rule(writer: Writer, node: NodeProto) -> None:
        affine = writer.affine(given(node, 3), given(node, 4), node.input[0])

        def made(reals: list[str]) -> str:
            return writer.node(operator, reals, f"{node.output[0]}/real", node.name, **_rest(node))

        if not nhwc.elementwise(writer, node, [operand(node, 0)], affine, made):
            writer.store(made([writer.real(operand(node, 0))]), affine, node.output[0])

    return rule


def _pool(operator: str) -> Rule:
    def rule(writer: Writer, node: NodeProto) -> None:
        x, name = operand(node, 0), f"{node.output[0]}/real"
        affine = writer.affine(given(node, 3), given(node, 4), node.input[0])
        if _is_last(writer, node, x[0], node.output[0]):
            pooled = writer.node(operator, [nhwc.real(writer, x)], name, node.name, **_rest(node))
            nhwc.store(writer, pooled, affine, node.output[0])
        else:
            writer.store(
                writer.node(operator, [writer.real(x)], name, node.name, **_rest(node)), affine, node.output[0]
            )

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
    operands = [operand(node, place) for place in range(2, len(node.input), 3)]
    affine, axis = writer.affine(given(node, 0), given(node, 1), given(node, 2)), attributes_of(node)["axis"]

    def joined(reals: list[str], axis: int) -> str:
        return writer.node("Concat", reals, f"{node.output[0]}/real", node.name, axis=axis)

    of_channels = axis in (-1, nhwc.RANK - 1)
    if not (of_channels and nhwc.elementwise(writer, node, operands, affine, partial(joined, axis=1))):
        writer.store(joined([writer.real(item) for item in operands], axis), affine, node.output[0])


def _where(writer: Writer, node: NodeProto) -> None:
    operands = [node.input[0], writer.real(operand(node, 1)), writer.real(operand(node, 4))]
    real = writer.node("Where", operands, f"{node.output[0]}/real", node.name)
    writer.store(real, writer.affine(given(node, 7), given(node, 8), node.input[1]), node.output[0])


RULES: Mapping[tuple[str, str], Rule] = MappingProxyType(
    {
        ("", "QLinearConv"): _convolution,
        ("", "QLinearMatMul"): _product,
        **{("", name): data_movement.pair for name in ("QuantizeLinear", "DequantizeLinear")},
        **{("", name): data_movement.move for name in data_movement.MOVES},
        ("", "Resize"): data_movement.resize,
        **{(MICROSOFT, name): data_movement.pair for name in ("QuantizeLinear", "DequantizeLinear")},
        (MICROSOFT, "GatherBlockQuantized"): block_quantized.gathered,
        (MICROSOFT, "MatMulNBits"): block_quantized.product,
        (MICROSOFT, "NhwcMaxPool"): nhwc.max_pool,
        (MICROSOFT, "QGemm"): _gemm,
        (MICROSOFT, "QLinearAdd"): _two("Add"),
        (MICROSOFT, "QLinearAveragePool"): _pool("AveragePool"),
        (MICROSOFT, "QLinearConcat"): _concat,
        (MICROSOFT, "QLinearConv"): _convolution,
        (MICROSOFT, "QLinearGlobalAveragePool"): _pool("GlobalAveragePool"),
        (MICROSOFT, "QLinearLeakyRelu"): _one("LeakyRelu"),
        (MICROSOFT, "QLinearMul"): _two("Mul"),
        (MICROSOFT, "QLinearReduceMean"): _mean,
        (MICROSOFT, "QLinearSigmoid"): _one("Sigmoid"),
        (MICROSOFT, "QLinearSoftmax"): _softmax,
        (MICROSOFT, "QLinearWhere"): _where,
        (MICROSOFT, "DynamicQuantizeLSTM"): dynamic.recurrent,
        (MICROSOFT, "DynamicQuantizeMatMul"): dynamic.quantized_product,
        (MICROSOFT, "MatMulIntegerToFloat"): dynamic.product_to_float,
        **{(MICROSOFT, name): rule for name, rule in fused.RULES.items()},
    }
)
"""How to write out each operator, by domain and name."""


def write_out(model: ModelProto) -> ModelProto:
    """Return ``model`` without the operators of RULES, where they are of a kind that can be written out.

    ``model`` itself where nothing is to be written out; it is left as it is. What cannot be written out stays.
    """
    return written_with_needs(model)[0]


def written_with_needs(model: ModelProto) -> tuple[ModelProto, int]:
    """Return what ``write_out`` does, and the least operator set that knows what was written."""
    writer, _ = _written(model)
    if writer is None or writer.nodes == list(model.graph.node):
        return model, 1
    return _assembled(model, writer), writer.needs


def opset_of(model: ModelProto) -> int:
    """Return the version of ONNX's own operators."""
    return next((item.version for item in model.opset_import if item.domain in STANDARD), 1)


def reasons(model: ModelProto) -> dict[str, str]:
    """Return why nodes of a model were not written out, by the name of their first result."""
    return _written(model)[1]


def _written(model: ModelProto) -> tuple[Writer | None, dict[str, str]]:
    """Return a graph written anew, None where it has no quantized values, and why some nodes are as they were."""
    if not any(_is_quantized(node) for node in model.graph.node):
        return None, {}
    writer, why = Writer.of(model.graph, opset_of(model)), dict[str, str]()
    scaled = dynamic.scaled_products(writer, model.graph)
    inner = {name for product in scaled.values() for name in product.inner}
    for node in model.graph.node:
        domain = "" if node.domain in STANDARD else node.domain
        if node.output[0] in inner:
            continue
        if node.output[0] in scaled:
            scaled[node.output[0]].write(writer)
            continue
        if (domain, node.op_type) not in RULES:
            writer.nodes.append(node)
            continue
        before = len(writer.nodes)
        try:
            signature.check(node, writer.opset)
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
