"""Operators on integers, as ONNX Runtime's quantizer writes them, spelt out as pairs of Quantize- and DequantizeLinear.

QLinearConv is a convolution of dequantized values whose result is quantized: that is its definition (ONNX operator
reference, QLinearConv-10, QLinearMatMul-21; ONNX Runtime's ContribOperators.md for the domain com.microsoft). Written
out so, a model needs no integer operators of its own, and whoever computes pairs in integers computes it as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper

from forge_pipeline.ir.contrib import nhwc, signature, table
from forge_pipeline.ir.contrib.table import Rule
from forge_pipeline.ir.contrib.writer import MICROSOFT, STANDARD, Operand, Unusual, Writer, attributes_of, given
from forge_pipeline.ir.qdq import block_quantized, data_movement, dynamic, four_bit_floats
from forge_pipeline.ir.traversal import every_node, subgraphs

LEFT_ALONE = frozenset({"channels_last", "opset"})
"""Attributes of com.microsoft's operators that ONNX's have not."""

PER_CHANNEL = 13
"""The operator set from which on DequantizeLinear may have several scales: what com.microsoft's operators become is
written in it, or in a newer one."""


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
        writer.add(helper.make_node("Gemm", operands, [result], name=node.name, **attributes))


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
    """QLinearSoftmax: over one axis, or over all axes from it on where it is that of an operator set before 13."""
    attributes, shape = attributes_of(node), writer.shapes.get(node.input[0])
    axis, result = attributes.get("axis", -1), node.output[0]
    is_last = axis == -1 or (shape is not None and axis == len(shape) - 1)
    real = writer.real(operand(node, 0))
    if is_last or attributes.get("opset", 1) >= PER_CHANNEL:
        _store(writer, node, writer.node("Softmax", [real], f"{result}/real", node.name, axis=axis), 3)
        return
    flat = writer.node("Flatten", [real], f"{result}/rows", axis=axis)
    rows = writer.node("Softmax", [flat], f"{result}/softmax", node.name, axis=-1)
    sizes = writer.node("Shape", [real], f"{result}/shape")
    _store(writer, node, writer.node("Reshape", [rows, sizes], f"{result}/real"), 3)


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
        (MICROSOFT, "MatMulBnb4"): four_bit_floats.product,
        (MICROSOFT, "MatMulNBits"): block_quantized.product,
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
        **{(MICROSOFT, name): rule for name, rule in table.RULES.items()},
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
    writing = written(model)
    if writing is None or not writing.is_changed:
        return model, 1
    return _assembled(model, writing), writing.needs


def opset_of(model: ModelProto) -> int:
    """Return the version of ONNX's own operators."""
    return next((item.version for item in model.opset_import if item.domain in STANDARD), 1)


def reasons(model: ModelProto) -> dict[str, str]:
    """Return why nodes of a model were not written out, by the name of their first result."""
    writing = written(model)
    return {} if writing is None else writing.why


@dataclass(slots=True, kw_only=True)
class Writing:
    """A model that is written anew: the writer of its main graph, and why nodes of any graph are as they were."""

    writer: Writer
    is_changed: bool = False
    needs: int = 1
    why: dict[str, str] = field(default_factory=dict)


def written(model: ModelProto) -> Writing | None:
    """Return a model written anew, None where nothing in it is to be written out."""
    if not any(_is_quantized(node) for node in every_node(model)):
        return None
    least = PER_CHANNEL if any(node.domain == MICROSOFT for node in every_node(model)) else 1
    writer = Writer.of(model.graph, opset_of(model), least)
    writing = Writing(writer=writer)
    _write(model.graph, writer, writing)
    return writing


def _write(graph: GraphProto, writer: Writer, writing: Writing) -> None:
    """Write the nodes of a graph, and those of the graphs in them."""
    scaled = dynamic.scaled_products(writer, graph)
    inner = {name for product in scaled.values() for name in product.inner}
    for node in graph.node:
        if node.output[0] in inner:
            continue
        if node.output[0] in scaled:
            scaled[node.output[0]].write(writer)
        elif not _replaced(node, writer, writing):
            writer.keep(_with_graphs(node, writer, writing))
    writing.is_changed |= writer.nodes != list(graph.node)
    writing.needs = max(writing.needs, writer.needs)


def _replaced(node: NodeProto, writer: Writer, writing: Writing) -> bool:
    """Write a node out by its rule; return whether there is one, and it can be followed."""
    rule = RULES.get(("" if node.domain in STANDARD else node.domain, node.op_type))
    if rule is None:
        if why := _why_without_rule(node):
            writing.why[node.output[0]] = why
        return False
    before, needs = len(writer.nodes), writer.needs
    try:
        signature.check(node, writer.source)
        rule(writer, node)
    except Unusual as reason:
        del writer.nodes[before:]
        writer.needs = needs
        writing.why[node.output[0]] = str(reason)
        return False
    return True


def _why_without_rule(node: NodeProto) -> str:
    if node.domain == MICROSOFT:
        return table.REASONS.get(node.op_type, "an operator of ONNX Runtime that has no rule")
    return table.LAYOUTS.get(node.domain, "")


def _with_graphs(node: NodeProto, writer: Writer, writing: Writing) -> NodeProto:
    """Return a node with the graphs in its attributes written anew, itself where it has none."""
    graphs = list(subgraphs(node))
    if not graphs:
        return node
    changed = NodeProto()
    changed.CopyFrom(node)
    for graph, copy in zip(graphs, subgraphs(changed), strict=True):
        inner = Writer.of(graph, writer.source, writer.opset, writer)
        _write(graph, inner, writing)
        del copy.node[:]
        copy.node.extend(inner.nodes)
    return changed


def _is_quantized(node: NodeProto) -> bool:
    return (
        node.domain == MICROSOFT
        or node.domain in table.LAYOUTS
        or node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear")
        or (node.op_type.startswith("QLinear"))
    )


def _assembled(model: ModelProto, writing: Writing) -> ModelProto:
    """Return a copy of ``model`` with what was written; weights are not copied twice."""
    result = ModelProto()
    result.CopyFrom(model)
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in writing.writer.nodes]
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    result.graph.initializer.extend(writing.writer.tensors)
    if not any(node.domain == MICROSOFT for node in every_node(result)):
        opsets = [entry for entry in model.opset_import if entry.domain != MICROSOFT]
        del result.opset_import[:]
        result.opset_import.extend(opsets)
    return result
