"""Operators of com.microsoft that ONNX Runtime's optimizers fuse from floats, spelt out as what they were fused from.

Source: ONNX Runtime's ContribOperators.md. Quantized models have them where they were optimized before or behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from forge_pipeline.ir.qdq.writer import Unusual, Writer, attributes_of, inputs_of

LAYER_NORMALIZATION = 17
"""The operator set that has it."""

Rule = Callable[[Writer, NodeProto], None]


def _number(writer: Writer, value: float, base: str) -> str:
    return writer.constant(np.array(value, np.float32), base)


def _last(writer: Writer, node: NodeProto, operator: str, inputs: list[str], **attributes: Any) -> None:
    """Add the node whose result is that of ``node``."""
    writer.nodes.append(helper.make_node(operator, inputs, [node.output[0]], name=node.name, **attributes))


def _quick_gelu(writer: Writer, node: NodeProto) -> None:
    x, result, alpha = node.input[0], node.output[0], float(attributes_of(node).get("alpha", 1.702))
    scaled = x if alpha == 1.0 else writer.node("Mul", [x, _number(writer, alpha, "alpha")], f"{result}/scaled")
    _last(writer, node, "Mul", [x, writer.node("Sigmoid", [scaled], f"{result}/gate")])


def _biased(writer: Writer, node: NodeProto) -> str:
    x, bias = inputs_of(node, 2)
    return writer.node("Add", [x, bias], f"{node.output[0]}/biased") if bias else x


def _gelu(writer: Writer, node: NodeProto) -> None:
    x, result = _biased(writer, node), node.output[0]
    scaled = writer.node("Div", [x, _number(writer, math.sqrt(2), "root")], f"{result}/scaled")
    one = _number(writer, 1.0, "one")
    gate = writer.node("Add", [writer.node("Erf", [scaled], f"{result}/erf"), one], f"{result}/gate")
    gated = writer.node("Mul", [x, gate], f"{result}/gated")
    _last(writer, node, "Mul", [gated, _number(writer, 0.5, "half")])


def _fast_gelu(writer: Writer, node: NodeProto) -> None:
    x, result = _biased(writer, node), node.output[0]
    cube = writer.node("Mul", [writer.node("Mul", [x, x], f"{result}/square"), x], f"{result}/cube")
    part = writer.node("Mul", [cube, _number(writer, 0.044715, "part")], f"{result}/part")
    inner = writer.node("Add", [x, part], f"{result}/inner")
    scaled = writer.node("Mul", [inner, _number(writer, math.sqrt(2 / math.pi), "root")], f"{result}/scaled")
    one = _number(writer, 1.0, "one")
    gate = writer.node("Add", [writer.node("Tanh", [scaled], f"{result}/tanh"), one], f"{result}/gate")
    gated = writer.node("Mul", [x, gate], f"{result}/gated")
    _last(writer, node, "Mul", [gated, _number(writer, 0.5, "half")])


def _product(writer: Writer, node: NodeProto) -> None:
    given, result = attributes_of(node), node.output[0]
    if given.get("transBatchA", 0) or given.get("transBatchB", 0):
        raise Unusual("batches behind rows")
    operands = [
        _transposed(writer, name, result) if given.get(which, 0) else name
        for name, which in zip(node.input, ("transA", "transB"), strict=True)
    ]
    alpha = float(given.get("alpha", 1.0))
    if alpha == 1.0:
        _last(writer, node, "MatMul", operands)
        return
    product = writer.node("MatMul", operands, f"{result}/product", node.name)
    writer.nodes.append(helper.make_node("Mul", [product, _number(writer, alpha, "alpha")], [result]))


def _transposed(writer: Writer, name: str, result: str) -> str:
    shape = writer.shapes.get(name)
    if shape is None or len(shape) < 2:
        raise Unusual("an operand to transpose whose axes are not known")
    axes = list(range(len(shape)))
    return writer.node("Transpose", [name], f"{result}/transposed", perm=[*axes[:-2], axes[-1], axes[-2]])


def _skip_norm(writer: Writer, node: NodeProto) -> None:
    x, skip, gamma, beta, bias = inputs_of(node, 5)
    outputs = [*node.output, "", "", ""]
    if outputs[1] or outputs[2]:
        raise Unusual("mean and deviation are used")
    if bias:
        x = writer.node("Add", [x, bias], f"{node.output[0]}/biased")
    total = outputs[3] or writer.named(f"{node.output[0]}/sum")
    writer.nodes.append(helper.make_node("Add", [x, skip], [total], name=f"{total}/added"))
    writer.needs = max(writer.needs, LAYER_NORMALIZATION)
    epsilon = float(attributes_of(node).get("epsilon", 1e-12))
    _last(writer, node, "LayerNormalization", [total, gamma, *([beta] * bool(beta))], axis=-1, epsilon=epsilon)


ACTIVATIONS = {"Relu": (), "Sigmoid": (), "Tanh": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
"""Attributes of what follows a product, in the order of ``activation_params``."""


def _followed(writer: Writer, node: NodeProto, real: str, activation: str, numbers: list[float]) -> None:
    if activation not in ACTIVATIONS:
        raise Unusual(f"the activation {activation}")
    attributes = dict(zip(ACTIVATIONS[activation], numbers, strict=False))
    writer.nodes.append(helper.make_node(activation, [real], [node.output[0]], **attributes))


def _convolution(writer: Writer, node: NodeProto) -> None:
    given, (x, weight, bias, other) = attributes_of(node), inputs_of(node, 4)
    activation, numbers = given.pop("activation", b"").decode(), list(given.pop("activation_params", []))
    operands = [x, weight, *([bias] * bool(bias))]
    real = writer.node("Conv", operands, f"{node.output[0]}/real", node.name, **given)
    if other:
        real = writer.node("Add", [real, other], f"{node.output[0]}/sum")
    _followed(writer, node, real, activation, numbers)


def _gemm(writer: Writer, node: NodeProto) -> None:
    given = attributes_of(node)
    own = {name: given[name] for name in ("alpha", "beta", "transA", "transB") if name in given}
    names = ("activation_alpha", "activation_beta")
    real = writer.node("Gemm", list(node.input), f"{node.output[0]}/real", node.name, **own)
    _followed(writer, node, real, given["activation"].decode(), [given[name] for name in names if name in given])


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "BiasGelu": _gelu,
        "FastGelu": _fast_gelu,
        "FusedConv": _convolution,
        "FusedGemm": _gemm,
        "FusedMatMul": _product,
        "Gelu": _gelu,
        "QuickGelu": _quick_gelu,
        "SkipLayerNormalization": _skip_norm,
    }
)
"""How to write out each operator of com.microsoft."""
