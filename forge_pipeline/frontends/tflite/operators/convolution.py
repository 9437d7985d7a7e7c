"""TensorFlow Lite's convolutions and pools, each as ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from forge_pipeline.frontends.tflite.builder import FIRST, TO_FIRST, Builder, Converter, bound, unsupported
from forge_pipeline.frontends.tflite.model import Operator
from forge_pipeline.frontends.tflite.sizes import Shape

SAME: Final = 0  # Padding of schema.fbs; 1 is VALID
_DEEP_TO_FIRST, _DEEP_TO_LAST = (0, 4, 1, 2, 3), (0, 2, 3, 4, 1)


def window(
    extents: Shape, *, same: bool, kernel: Sequence[int | None], strides: Sequence[int], dilations: Sequence[int]
) -> dict[str, Any]:
    """Return strides, dilations and pads; SAME puts the odd one behind, as ONNX's SAME_UPPER."""
    attributes: dict[str, Any] = {"strides": list(strides)}
    if any(dilation != 1 for dilation in dilations):
        attributes["dilations"] = list(dilations)
    if not same:
        return attributes
    befores, afters = [], []
    for extent, size, stride, dilation in zip(extents, kernel, strides, dilations, strict=True):
        if size is None or (extent is None and stride > 1):
            if "dilations" in attributes:
                raise unsupported("a dilated window with strides over an open size", "a fixed size, or strides of 1")
            return attributes | {"auto_pad": "SAME_UPPER"}
        missing = 0 if extent is None else (-(-extent // stride) - 1) * stride + 1 - extent  # 0 with strides of 1
        total = max(missing + (size - 1) * dilation, 0)
        befores.append(total // 2)
        afters.append(total - total // 2)
    return attributes | {"pads": [*befores, *afters]} if any(befores + afters) else attributes


def bias(b: Builder, op: Operator, position: int) -> list[str]:
    """Return the bias, if there is one."""
    return [b.real(op.inputs[position])] if len(op.inputs) > position and op.inputs[position] >= 0 else []


def _flat(b: Builder, op: Operator, dilated: bool) -> dict[str, Any]:
    options = op.options
    return window(
        b.shape(op.inputs[0])[1:3],
        same=options.Padding() == SAME,
        kernel=b.shape(op.inputs[1])[1:3],
        strides=(options.StrideH(), options.StrideW()),
        dilations=(options.DilationHFactor(), options.DilationWFactor()) if dilated else (1, 1),
    )


def _kernel(b: Builder, index: int, order: Sequence[int]) -> str:
    """Return a kernel whose axes are in another order; integers keep their scales."""
    data, quantization = b.tensor(index).data, b.tensor(index).quantization
    if data is None:
        return b.node("Transpose", [b.real(index)], perm=list(order))
    axis = list(order).index(quantization.axis) if quantization is not None and quantization.per_axis else 0
    return b.real_constant(index, data.transpose(order), axis)


def convolution(b: Builder, op: Operator) -> None:
    """CONV_2D: weights [out, height, width, in of a group]."""
    weights = b.shape(op.inputs[1])
    inner, channels = weights[3], b.shape(op.inputs[0])[3]
    operands = [b.real(op.inputs[0], FIRST), _kernel(b, op.inputs[1], TO_FIRST), *bias(b, op, 2)]
    groups = channels // inner if channels and inner else 1
    name = b.node("Conv", operands, group=groups, **_shape_of(weights[1:3]), **_flat(b, op, dilated=True))
    b.put(op.outputs[0], b.activated(name, bound(op), op.outputs[0]), FIRST)


def depthwise(b: Builder, op: Operator) -> None:
    """DEPTHWISE_CONV_2D: weights [1, height, width, in * multiplier], a channel's results side by side."""
    weights, channels = b.shape(op.inputs[1]), b.shape(op.inputs[0])[3]
    if channels is None and weights[3] is not None:
        channels = weights[3] // max(1, op.options.DepthMultiplier())
    operands = [b.real(op.inputs[0], FIRST), _kernel(b, op.inputs[1], (3, 0, 1, 2)), *bias(b, op, 2)]
    name = b.node("Conv", operands, group=channels, **_shape_of(weights[1:3]), **_flat(b, op, dilated=True))
    b.put(op.outputs[0], b.activated(name, bound(op), op.outputs[0]), FIRST)


def _shape_of(extents: Shape) -> dict[str, Any]:
    return {} if None in extents else {"kernel_shape": list(extents)}


def transposed_convolution(b: Builder, op: Operator) -> None:
    """TRANSPOSE_CONV: operands are the result's shape, the weights [out, height, width, in], and the values."""
    kernel = _kernel(b, op.inputs[1], (3, 0, 1, 2))
    operands = [b.real(op.inputs[2], FIRST), kernel, *bias(b, op, 3)]
    strides, same = (op.options.StrideH(), op.options.StrideW()), op.options.Padding() == SAME
    wanted = b.shape(op.outputs[0])[1:3]
    name = scattered(b, operands, b.shape(op.inputs[2])[1:3], b.shape(op.inputs[1])[1:3], strides, wanted, same=same)
    if name is None:
        size = b.node("Slice", [b.int64(op.inputs[0]), b.integers(1), b.integers(3)])
        name = _cut(b, operands, b.shape(op.inputs[1])[1:3], strides, size, same=same)
    b.put(op.outputs[0], b.activated(name, bound(op), op.outputs[0]), FIRST)


def scattered(
    b: Builder, operands: list[str], given: Shape, kernel: Shape, strides: Sequence[int], wanted: Shape, *, same: bool
) -> str | None:
    """Return a transposed convolution to the size ``wanted``, channels first; None where a size is open."""
    begins, ends, extras = [], [], []
    for extent, size, stride, taps in zip(wanted, given, strides, kernel, strict=True):
        if extent is None or size is None or taps is None:
            return None
        full = (size - 1) * stride + taps
        cut = max(full - extent, 0) if same else 0
        begins.append(cut // 2)
        ends.append(cut - cut // 2)
        extras.append(extent - (full - cut))
    return b.node(
        "ConvTranspose",
        operands,
        kernel_shape=list(kernel),
        strides=list(strides),
        pads=[*begins, *ends],
        output_padding=extras,
    )


def _cut(b: Builder, operands: list[str], kernel: Shape, strides: Sequence[int], size: str, *, same: bool) -> str:
    """Return a transposed convolution of a size that is known at run time: the whole one, and a part of it."""
    if None in kernel:
        raise unsupported("a kernel of open size", "a kernel of fixed size")
    extras = [max(stride - taps, 0) for stride, taps in zip(strides, kernel, strict=True) if taps is not None]
    whole = b.node("ConvTranspose", operands, kernel_shape=list(kernel), strides=list(strides), output_padding=extras)
    begin = b.integers(0, 0)
    if same:
        full = b.node("Sub", [b.node("Shape", [whole], start=2), b.integers(*extras)])
        left = b.node("Max", [b.node("Sub", [full, size]), begin])
        begin = b.node("Div", [left, b.integers(2)])
    return b.node("Slice", [whole, begin, b.node("Add", [begin, size]), b.integers(2, 3)])


def deep_convolution(b: Builder, op: Operator) -> None:
    """CONV_3D: values [batch, depth, height, width, channels], weights [depth, height, width, in, out]."""
    options, weights = op.options, b.shape(op.inputs[1])
    values = b.node("Transpose", [b.real(op.inputs[0])], perm=_DEEP_TO_FIRST)
    around = window(
        b.shape(op.inputs[0])[1:4],
        same=options.Padding() == SAME,
        kernel=weights[:3],
        strides=(options.StrideD(), options.StrideH(), options.StrideW()),
        dilations=(options.DilationDFactor(), options.DilationHFactor(), options.DilationWFactor()),
    )
    operands = [values, _kernel(b, op.inputs[1], (4, 3, 0, 1, 2)), *bias(b, op, 2)]
    name = b.node("Conv", operands, **_shape_of(weights[:3]), **around)
    name = b.node("Transpose", [name], perm=_DEEP_TO_LAST)
    b.put(op.outputs[0], b.activated(name, bound(op), op.outputs[0]))


def deep_transposed_convolution(b: Builder, op: Operator) -> None:
    """CONV_3D_TRANSPOSE: the result's shape, the weights [depth, height, width, out, in], the values, a bias."""
    options, weights = op.options, b.shape(op.inputs[1])
    values = b.node("Transpose", [b.real(op.inputs[2])], perm=_DEEP_TO_FIRST)
    operands = [values, _kernel(b, op.inputs[1], (4, 3, 0, 1, 2)), *bias(b, op, 3)]
    strides = (options.StrideD(), options.StrideH(), options.StrideW())
    same = options.Padding() == SAME
    name = scattered(
        b, operands, b.shape(op.inputs[2])[1:4], weights[:3], strides, b.shape(op.outputs[0])[1:4], same=same
    )
    if name is None:
        raise unsupported("an open depth, height or width", "fixed ones")
    name = b.node("Transpose", [name], perm=_DEEP_TO_LAST)
    b.put(op.outputs[0], b.activated(name, bound(op), op.outputs[0]))


def _pooled(b: Builder, op: Operator, op_type: str, values: str) -> str:
    options = op.options
    kernel = (options.FilterHeight(), options.FilterWidth())
    strides = (options.StrideH(), options.StrideW())
    same, extents = options.Padding() == SAME, b.shape(op.inputs[0])[1:3]
    around = window(extents, same=same, kernel=kernel, strides=strides, dilations=(1, 1))
    return b.node(op_type, [values], kernel_shape=kernel, **around)


def pool(op_type: str) -> Converter:
    """AVERAGE_POOL_2D, MAX_POOL_2D: what lies outside is not counted."""

    def convert(b: Builder, op: Operator) -> None:
        name = _pooled(b, op, op_type, b.real(op.inputs[0], FIRST))
        b.put(op.outputs[0], b.activated(name, bound(op), op.outputs[0]), FIRST)

    return convert


def euclidean_pool(b: Builder, op: Operator) -> None:
    """L2_POOL_2D: the root of the mean of the squares."""
    values = b.real(op.inputs[0], FIRST)
    name = b.node("Sqrt", [_pooled(b, op, "AveragePool", b.node("Mul", [values, values]))])
    b.put(op.outputs[0], b.activated(name, bound(op), op.outputs[0]), FIRST)


def local_response(b: Builder, op: Operator) -> None:
    """LOCAL_RESPONSE_NORMALIZATION over ``radius`` channels on each side; ONNX divides its alpha by their number."""
    options = op.options
    size = 2 * options.Radius() + 1
    alpha = float(np.float32(options.Alpha()) * size)
    attributes = {"size": size, "alpha": alpha, "beta": float(options.Beta()), "bias": float(options.Bias())}
    b.put(op.outputs[0], b.node("LRN", [b.real(op.inputs[0], FIRST)], **attributes), FIRST)
