"""Normalizations of com.microsoft: with a sum in front, without a mean, in groups of channels.

Sources: ONNX Runtime's ContribOperators.md; Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv
1910.07467; Wu and He, "Group Normalization", arXiv 1803.08494.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, helper

from forge_pipeline.ir.contrib.emitter import Axes, Emitter
from forge_pipeline.ir.contrib.nhwc import TO_FIRST, TO_LAST
from forge_pipeline.ir.contrib.writer import Unusual, Writer

LAYER_NORMALIZATION = 17
"""The operator set that has it."""

HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def layer_norm(op: Emitter, x: str, gamma: str, beta: str, epsilon: float) -> None:
    """Give the first result: ``x`` normalized over its last axis."""
    op.writer.needs = max(op.writer.needs, LAYER_NORMALIZATION)
    op.result(0, "LayerNormalization", x, gamma, *([beta] * bool(beta)), axis=-1, epsilon=epsilon)


def rms_norm(op: Emitter, x: str, gamma: str, epsilon: float, axes: Axes = (-1,)) -> tuple[str, str]:
    """Return x / sqrt(mean(x^2) + epsilon), scaled, and what is divided by; the mean is computed in 32 bits."""
    wide = op.cast(x, TensorProto.FLOAT) if op.kind(x) in HALF else x
    mean = op.reduce("ReduceMean", op("Mul", wide, wide), axes)
    deviation = op("Sqrt", op("Add", mean, op.number(epsilon, wide)))
    normal = op("Div", wide, deviation)
    if wide != x:
        normal = op.cast(normal, op.kind(x))
    return (op("Mul", normal, gamma) if gamma else normal), deviation


def _added(op: Emitter, bias: int) -> str:
    """Return the sum of the first two inputs and a bias, which is also the fourth result."""
    if op.output(1) or op.output(2):
        raise Unusual("mean and deviation are used")
    x, skip = op.input(0), op.input(1)
    if op.input(bias):
        x = op("Add", x, op.input(bias))
    if not op.output(3):
        return op("Add", x, skip)
    op.result(3, "Add", x, skip)
    return op.output(3)


def _skip_layer(writer: Writer, node: NodeProto) -> None:
    """SkipLayerNormalization (input, skip, gamma, beta, bias)."""
    op = Emitter(writer, node)
    layer_norm(op, _added(op, 4), op.input(2), op.input(3), op.real("epsilon", 1e-12))


def _skip_rms(writer: Writer, node: NodeProto) -> None:
    """SkipSimplifiedLayerNormalization (input, skip, gamma, bias)."""
    op = Emitter(writer, node)
    op.give(0, rms_norm(op, _added(op, 3), op.input(2), op.real("epsilon", 1e-12))[0])


def _rms(writer: Writer, node: NodeProto) -> None:
    """SimplifiedLayerNormalization (X, scale), over all axes from ``axis`` on."""
    op = Emitter(writer, node)
    x, axis = op.input(0), op.integer("axis", -1)
    first = axis if axis < 0 else axis - op.rank(x, "an operand")
    normal, deviation = rms_norm(op, x, op.input(1), op.real("epsilon", 1e-5), range(first, 0))
    op.give(0, normal)
    op.result(1, "Reciprocal", deviation)


def _layer(writer: Writer, node: NodeProto) -> None:
    """LayerNormalization as ONNX Runtime has it in any operator set: ONNX's own of set 17."""
    writer.needs = max(writer.needs, LAYER_NORMALIZATION)
    own = helper.make_node("LayerNormalization", list(node.input), list(node.output), name=node.name)
    own.attribute.extend(node.attribute)
    writer.add(own)


def _branches(writer: Writer, node: NodeProto) -> None:
    """BranchwiseRMSNorm (X, scale): X (..., C, H), or (..., C * H) with ``num_branches`` C."""
    op = Emitter(writer, node)
    x, branches, scale = op.input(0), op.integer("num_branches"), op.input(1)
    rank = op.rank(x, "an operand")
    if branches:
        size = op.size(x, -1)
        if size is None or size % branches:
            raise Unusual(f"{branches} branches of {size or 'an unknown number of'} elements")
        split = op.reshape(x, *(0,) * (rank - 1), branches, size // branches)
    else:
        split = x
    wide = op.cast(split, TensorProto.FLOAT)
    normal, _ = rms_norm(op, wide, "", op.real("epsilon", 1e-6))
    if scale:
        factor = op.cast(scale, TensorProto.FLOAT)
        count, height = branches or op.size(x, -2), op.size(split, -1)
        if op.rank(scale, "a scale") == 1 and op.size(scale, 0) != height:
            if count is None or height is None:
                raise Unusual("branches of an unknown number")
            factor = op.reshape(factor, count, height)
        normal = op("Mul", normal, factor)
    normal = op.cast(normal, op.kind(x))
    op.give(0, op.reshape(normal, *(0,) * (rank - 1), -1) if branches else normal)


def _gated(writer: Writer, node: NodeProto) -> None:
    """GatedRMSNorm (X, scale, gate): over every group of as many elements as the scale has, in 32 bits."""
    op = Emitter(writer, node)
    x, size, activation = op.input(0), op.size(op.input(1), 0), op.text("activation", "silu")
    if size is None or activation not in ("silu", "swish", "sigmoid"):
        raise Unusual(f"groups of {size or 'an unknown number of'} elements, the gate {activation}")
    rank = op.rank(x, "an operand")
    wide, gate = (
        op.cast(op.reshape(name, *(0,) * (rank - 1), -1, size), TensorProto.FLOAT) for name in (x, op.input(2))
    )
    normal, _ = rms_norm(op, wide, op.cast(op.input(1), TensorProto.FLOAT), op.real("epsilon", 1e-5))
    opened = op("Sigmoid", gate) if activation == "sigmoid" else op.silu(gate)
    flat = op.reshape(op("Mul", normal, opened), *(0,) * (rank - 1), -1)
    op.give(0, op.cast(flat, op.kind(x)))


def _groups(writer: Writer, node: NodeProto) -> None:
    """GroupNorm (X, gamma, beta) and SkipGroupNorm (X, gamma, beta, skip, bias), with channels last or second."""
    op = Emitter(writer, node)
    x, (gamma, beta), count = op.input(0), (op.input(1), op.input(2)), op.integer("groups")
    is_last, channels = bool(op.integer("channels_last", 1)), op.size(op.input(1), 0)
    if op.integer("activation") not in (0, 1):
        raise Unusual(f"the activation {op.integer('activation')}")
    if count < 1 or channels is None or channels % count:
        raise Unusual(f"{count} groups of {channels or 'an unknown number of'} channels")
    if node.op_type == "SkipGroupNorm":
        x = _with_skip(op, x, channels, is_last=is_last)
    if is_last:
        x = op.transpose(x, *TO_FIRST)
    kind = op.kind(x)
    wide = op.cast(x, TensorProto.FLOAT)
    ones, zeros = (op.constant(np.full(count, value, np.float32)) for value in (1, 0))
    parts = op.reshape(wide, 0, count, -1)
    normal = op("InstanceNormalization", parts, ones, zeros, epsilon=op.real("epsilon", 1e-5))
    normal = op("Reshape", normal, op("Shape", x))
    factor, shift = (op.reshape(op.cast(name, TensorProto.FLOAT), -1, 1, 1) for name in (gamma, beta))
    value = op.cast(op("Add", op("Mul", normal, factor), shift), kind)
    if op.integer("activation"):
        value = op.silu(value)
    op.give(0, op.transpose(value, *TO_LAST) if is_last else value)


def _with_skip(op: Emitter, x: str, channels: int, *, is_last: bool) -> str:
    """Return the image with its residual, (N, C) or as the image, and its bias; also the second result."""
    skip, bias = op.input(3), op.input(4)
    if op.rank(skip, "a residual") == 2:
        skip = op.unsqueeze(skip, *((1, 2) if is_last else (2, 3)))
    if bias:
        x = op("Add", x, bias if is_last else op.reshape(bias, channels, 1, 1))
    if not op.output(1):
        return op("Add", x, skip)
    op.result(1, "Add", x, skip)
    return op.output(1)


RULES = {
    "BranchwiseRMSNorm": _branches,
    "GatedRMSNorm": _gated,
    "GroupNorm": _groups,
    "LayerNormalization": _layer,
    "SimplifiedLayerNormalization": _rms,
    "SkipGroupNorm": _groups,
    "SkipLayerNormalization": _skip_layer,
    "SkipSimplifiedLayerNormalization": _skip_rms,
}
"""How to write out each operator of com.microsoft, and two that ONNX Runtime has in ONNX's own domain."""
