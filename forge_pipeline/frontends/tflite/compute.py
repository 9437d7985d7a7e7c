"""TensorFlow Lite's operators that compute with numbers, each as ONNX: convolutions, products, pools, others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from forge_pipeline.frontends.tflite.builder import FIRST, LAST, TO_FIRST, Builder, bound, option, unsupported
from forge_pipeline.frontends.tflite.model import Operator

Convert = Callable[[Builder, Operator], None]
_SAME = 0  # Padding of schema.fbs; 1 is VALID


def _window(b: Builder, op: Operator, kernel: tuple[int, int], dilations: tuple[int, int]) -> dict[str, Any]:
    """Return strides, dilations and pads; SAME puts the odd one behind, as ONNX's SAME_UPPER."""
    strides = (op.options.StrideH(), op.options.StrideW())
    attributes: dict[str, Any] = {"strides": strides}
    if dilations != (1, 1):
        attributes["dilations"] = dilations
    if op.options.Padding() != _SAME:
        return attributes
    extents = b.shape(op.inputs[0])[1:3]
    if any(extent is None for extent in extents):
        return attributes | {"auto_pad": "SAME_UPPER"}
    totals = [
        max((-(-extent // stride) - 1) * stride + (size - 1) * dilation + 1 - extent, 0)
        for extent, stride, size, dilation in zip(extents, strides, kernel, dilations, strict=True)
        if extent is not None
    ]
    if any(totals):
        attributes["pads"] = [*(total // 2 for total in totals), *(total - total // 2 for total in totals)]
    return attributes


def _bias(b: Builder, op: Operator, position: int) -> list[str]:
    return [b.real(op.inputs[position])] if len(op.inputs) > position and op.inputs[position] >= 0 else []


def _finish(b: Builder, op: Operator, name: str, layout: str = LAST) -> None:
    b.put(op.outputs[0], b.activated(name, bound(op), op.outputs[0]), layout)


def convolution(b: Builder, op: Operator) -> None:
    """CONV_2D: weights [out, height, width, in of a group]."""
    weights = b.data(op.inputs[1], "kernel")
    channels = b.shape(op.inputs[0])[3]
    kernel = b.real_constant(op.inputs[1], weights.transpose(TO_FIRST), 0)
    dilations = (op.options.DilationHFactor(), op.options.DilationWFactor())
    name = b.node(
        "Conv", [b.real(op.inputs[0], FIRST), kernel, *_bias(b, op, 2)],
        kernel_shape=weights.shape[1:3], group=(channels or weights.shape[3]) // weights.shape[3],
        **_window(b, op, weights.shape[1:3], dilations),
    )  # fmt: skip
    _finish(b, op, name, FIRST)


def depthwise(b: Builder, op: Operator) -> None:
    """DEPTHWISE_CONV_2D: weights [1, height, width, in * multiplier], a channel's results side by side."""
    weights = b.data(op.inputs[1], "kernel")
    channels = b.shape(op.inputs[0])[3] or weights.shape[3] // max(1, op.options.DepthMultiplier())
    kernel = b.real_constant(op.inputs[1], weights.transpose(3, 0, 1, 2), 0)
    dilations = (op.options.DilationHFactor(), op.options.DilationWFactor())
    name = b.node(
        "Conv", [b.real(op.inputs[0], FIRST), kernel, *_bias(b, op, 2)],
        kernel_shape=weights.shape[1:3], group=channels, **_window(b, op, weights.shape[1:3], dilations),
    )  # fmt: skip
    _finish(b, op, name, FIRST)


def transposed_convolution(b: Builder, op: Operator) -> None:
    """TRANSPOSE_CONV: operands are the result's shape, the weights [out, height, width, in], and the values."""
    weights = b.data(op.inputs[1], "kernel")
    wanted, given = b.shape(op.outputs[0])[1:3], b.shape(op.inputs[2])[1:3]
    strides = (op.options.StrideH(), op.options.StrideW())
    begins, ends, extras = [], [], []
    for extent, size, stride, taps in zip(wanted, given, strides, weights.shape[1:3], strict=True):
        if extent is None or size is None:
            raise unsupported("an open height or width", "a fixed height and width")
        full = (size - 1) * stride + taps
        cut = max(full - extent, 0) if op.options.Padding() == _SAME else 0
        begins.append(cut // 2)
        ends.append(cut - cut // 2)
        extras.append(extent - (full - cut))
    axis_of_scale = 1  # of [in, out, height, width]
    kernel = b.real_constant(op.inputs[1], weights.transpose(3, 0, 1, 2), axis_of_scale)
    name = b.node(
        "ConvTranspose", [b.real(op.inputs[2], FIRST), kernel, *_bias(b, op, 3)],
        kernel_shape=weights.shape[1:3], strides=strides, pads=[*begins, *ends], output_padding=extras,
    )  # fmt: skip
    _finish(b, op, name, FIRST)


def fully_connected(b: Builder, op: Operator) -> None:
    """FULLY_CONNECTED: weights [out, in]; the values' leading dimensions are one, or kept with ``keep_num_dims``."""
    if option(op, "WeightsFormat", 0) != 0:
        raise unsupported("shuffled weights", "weights in their own order")
    weights = b.data(op.inputs[1], "matrix")
    values, shape = b.real(op.inputs[0]), b.shape(op.inputs[0])
    if option(op, "KeepNumDims", False) and len(shape) != 2:
        name = b.node("MatMul", [values, b.real_constant(op.inputs[1], weights.T, 1)])
        if bias := _bias(b, op, 2):
            name = b.node("Add", [name, *bias])
    else:
        if len(shape) != 2 or shape[1] != weights.shape[1]:
            values = b.node("Reshape", [values, b.integers(-1, weights.shape[1])])
        name = b.node("Gemm", [values, b.real_constant(op.inputs[1], weights, 0), *_bias(b, op, 2)], transB=1)
    _finish(b, op, name)


def batched_product(b: Builder, op: Operator) -> None:
    """BATCH_MATMUL: either side may come transposed."""
    sides = []
    for position, flag in enumerate(("AdjX", "AdjY")):
        name, rank = b.real(op.inputs[position]), len(b.shape(op.inputs[position]))
        if option(op, flag, False):
            name = b.node("Transpose", [name], perm=[*range(rank - 2), rank - 1, rank - 2])
        sides.append(name)
    b.put(op.outputs[0], b.node("MatMul", sides))


def pool(op_type: str) -> Convert:
    """AVERAGE_POOL_2D, MAX_POOL_2D: what lies outside is not counted."""

    def convert(b: Builder, op: Operator) -> None:
        kernel = (op.options.FilterHeight(), op.options.FilterWidth())
        name = b.node(op_type, [b.real(op.inputs[0], FIRST)], kernel_shape=kernel, **_window(b, op, kernel, (1, 1)))
        _finish(b, op, name, FIRST)

    return convert


def unary(op_type: str, **attributes: Any) -> Convert:
    """One operand, element by element, any layout."""

    def convert(b: Builder, op: Operator) -> None:
        layout = b.layout(op.inputs[0])
        b.put(op.outputs[0], b.node(op_type, [b.real(op.inputs[0], layout)], **attributes), layout)

    return convert


def binary(op_type: str) -> Convert:
    """Two operands that are broadcast against each other, and a fused activation."""

    def convert(b: Builder, op: Operator) -> None:
        layout = _common(b, op)
        name = b.node(op_type, [b.real(index, layout) for index in op.inputs])
        _finish(b, op, name, layout)

    return convert


def plain(op_type: str) -> Convert:
    """As ``binary``, for operators whose options hold no activation."""

    def convert(b: Builder, op: Operator) -> None:
        layout = _common(b, op)
        b.put(op.outputs[0], b.node(op_type, [b.real(index, layout) for index in op.inputs]), layout)

    return convert


def _common(b: Builder, op: Operator) -> str:
    """Return channels first where all computed operands have them there and no constant has more dimensions."""
    fits = all(len(b.shape(index)) <= 4 for index in op.inputs)
    return b.layout(*op.inputs) if fits and len(b.shape(op.outputs[0])) == 4 else LAST


def squared_difference(b: Builder, op: Operator) -> None:
    """SQUARED_DIFFERENCE."""
    layout = _common(b, op)
    name = b.node("Sub", [b.real(index, layout) for index in op.inputs])
    b.put(op.outputs[0], b.node("Mul", [name, name]), layout)


def not_equal(b: Builder, op: Operator) -> None:
    """NOT_EQUAL."""
    layout = _common(b, op)
    name = b.node("Equal", [b.real(index, layout) for index in op.inputs])
    b.put(op.outputs[0], b.node("Not", [name]), layout)


def floor_mod(b: Builder, op: Operator) -> None:
    """FLOOR_MOD: the result has the divisor's sign, which ONNX's Mod does for integers only."""
    layout = _common(b, op)
    left, right = (b.real(index, layout) for index in op.inputs)
    if b.tensor(op.inputs[0]).dtype == "float32":
        quotient = b.node("Floor", [b.node("Div", [left, right])])
        b.put(op.outputs[0], b.node("Sub", [left, b.node("Mul", [quotient, right])]), layout)
    else:
        b.put(op.outputs[0], b.node("Mod", [left, right]), layout)


def floor_div(b: Builder, op: Operator) -> None:
    """FLOOR_DIV of floats; ONNX divides integers towards zero."""
    if b.tensor(op.inputs[0]).dtype != "float32":
        raise unsupported("integers", "float32")
    layout = _common(b, op)
    quotient = b.node("Div", [b.real(index, layout) for index in op.inputs])
    b.put(op.outputs[0], b.node("Floor", [quotient]), layout)


def square(b: Builder, op: Operator) -> None:
    """SQUARE."""
    layout = b.layout(op.inputs[0])
    name = b.real(op.inputs[0], layout)
    b.put(op.outputs[0], b.node("Mul", [name, name]), layout)


def rsqrt(b: Builder, op: Operator) -> None:
    """RSQRT."""
    layout = b.layout(op.inputs[0])
    b.put(op.outputs[0], b.node("Reciprocal", [b.node("Sqrt", [b.real(op.inputs[0], layout)])]), layout)


def clipped(low: float, high: float) -> Convert:
    """RELU6 and its like, as operators of their own."""

    def convert(b: Builder, op: Operator) -> None:
        layout = b.layout(op.inputs[0])
        bounds = [b.constant(np.float32(low)), b.constant(np.float32(high))]
        b.put(op.outputs[0], b.node("Clip", [b.real(op.inputs[0], layout), *bounds]), layout)

    return convert


def leaky(b: Builder, op: Operator) -> None:
    """LEAKY_RELU."""
    layout = b.layout(op.inputs[0])
    slope = float(option(op, "Alpha", 0.0))
    b.put(op.outputs[0], b.node("LeakyRelu", [b.real(op.inputs[0], layout)], alpha=slope), layout)


def gelu(b: Builder, op: Operator) -> None:
    """GELU, by the error function or its approximation by tanh (Hendrycks and Gimpel, arXiv:1606.08415)."""
    layout = b.layout(op.inputs[0])
    x = b.real(op.inputs[0], layout)
    if option(op, "Approximate", False):
        cube = b.node("Mul", [b.node("Mul", [x, x]), x])
        inner = b.node("Add", [x, b.node("Mul", [cube, b.constant(np.float32(0.044715))])])
        curve = b.node("Tanh", [b.node("Mul", [inner, b.constant(np.float32(np.sqrt(2 / np.pi)))])])
    else:
        curve = b.node("Erf", [b.node("Mul", [x, b.constant(np.float32(np.sqrt(0.5)))])])
    gate = b.node("Mul", [b.node("Add", [curve, b.constant(np.float32(1))]), b.constant(np.float32(0.5))])
    b.put(op.outputs[0], b.node("Mul", [x, gate]), layout)


def softmax(b: Builder, op: Operator) -> None:
    """SOFTMAX over the last dimension; ``beta`` scales what goes in."""
    name, beta = b.real(op.inputs[0]), float(option(op, "Beta", 1.0))
    if beta != 1.0:
        name = b.node("Mul", [name, b.constant(np.float32(beta))])
    b.put(op.outputs[0], b.node("Softmax", [name], axis=-1))


def last_axis(op_type: str, **attributes: Any) -> Convert:
    """Over the last dimension: LOG_SOFTMAX, L2_NORMALIZATION."""

    def convert(b: Builder, op: Operator) -> None:
        b.put(op.outputs[0], b.node(op_type, [b.real(op.inputs[0])], axis=-1, **attributes))

    return convert


def reduction(op_type: str) -> Convert:
    """Over constant axes; with the channels where they are."""

    def convert(b: Builder, op: Operator) -> None:
        rank, keep = len(b.shape(op.inputs[0])), bool(option(op, "KeepDims", False))
        axes = sorted({int(axis) % rank for axis in b.data(op.inputs[1], "set of axes").reshape(-1)})
        layout = b.layout(op.inputs[0])
        stays = keep or (not {1, 2}.isdisjoint(axes) and {1, 2} <= set(axes))  # [n, c] is the same in both layouts
        layout = layout if stays else LAST
        own = [TO_FIRST.index(axis) for axis in axes] if layout == FIRST else axes
        if op_type == "ReduceSum":
            name = b.node(op_type, [b.real(op.inputs[0], layout), b.integers(*own)], keepdims=int(keep))
        else:
            name = b.node(op_type, [b.real(op.inputs[0], layout)], axes=own, keepdims=int(keep))
        b.put(op.outputs[0], name, layout if keep else LAST)

    return convert


def extreme_index(op_type: str) -> Convert:
    """ARG_MAX, ARG_MIN."""

    def convert(b: Builder, op: Operator) -> None:
        axis = int(b.data(op.inputs[1], "axis").reshape(-1)[0])
        name = b.node(op_type, [b.real(op.inputs[0])], axis=axis, keepdims=0)
        b.give(op.outputs[0], b.cast(name, b.tensor(op.outputs[0]).dtype))

    return convert
