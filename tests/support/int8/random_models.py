"""Random quantized models: whatever operators meet."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.support.int8.net import Net

LARGEST = 20000
"""Elements of a value at most."""

Shape = tuple[int, ...]


class Grown(Net):
    """A quantized model to which random operators are added; steps are powers of two, so that sums are exact."""

    def __init__(self, draw: Random) -> None:
        shape = draw.choice([1, 1, 2]), draw.choice([1, 3, 4, 8, 16, 24]), *draw.choices([5, 7, 8, 9, 12, 14], k=2)
        super().__init__(*shape)
        self.draw, self.is_signed = draw, draw.random() < 0.25
        self.values: dict[str, Shape] = {self.quantized("x"): shape}

    def quantized(self, x: str) -> str:
        """Append QuantizeLinear and DequantizeLinear."""
        zeros = [-128, -3, 0, 127] if self.is_signed else [0, 0, 5, 113, 128, 255]
        zero = (np.int8 if self.is_signed else np.uint8)(self.draw.choice(zeros))
        affine = self.tensor(np.float32(2.0 ** self.draw.choice([-1, 0, 1, 2, 3, 4]))), self.tensor(zero)
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, *affine), *affine)

    def weight(self, shape: Shape, scale: Any, axis: int = 0, largest: int = 127) -> str:
        """Append weights of some kind, with a scale for each filter."""
        low, high, zero = self.draw.choice([(-40, 41, 0), (-40, 41, 0), (-127, 128, 0), (-128, 128, 0), (0, 256, 100)])
        dtype = np.uint8 if zero else np.int8
        stored = self.tensor(self.random.integers(low, high, shape).astype(dtype))
        scales, zeros = np.full(shape[axis], scale, np.float32), np.full(shape[axis], zero, dtype)
        return self.node("DequantizeLinear", stored, self.tensor(scales), self.tensor(zeros), axis=axis)

    def grow(self) -> None:
        """Add an operator to one of the last values, quantized or not; none where it does not go with the value."""
        x = self.draw.choice(list(self.values)[-4:])
        operator = self.draw.choice([made for rank, made in OPERATORS if len(self.values[x]) in rank])
        before = len(self.nodes)
        made = operator(self, x, self.values[x])
        if made is not None and self.draw.random() < 0.25:
            made = self.node("Relu", made)
        shape = None if made is None else self.shape_of(made)
        if made is None or shape is None or not 0 < np.prod(shape) <= LARGEST:
            del self.nodes[before:]
            return
        self.values[self.quantized(made) if self.draw.random() < 0.85 else made] = shape

    def shape_of(self, name: str) -> Shape | None:
        """Return the shape that ONNX infers; None where the operator does not take its operands."""
        try:
            inferred = onnx.shape_inference.infer_shapes(self.model([name]), strict_mode=True, data_prop=True)
        except onnx.shape_inference.InferenceError:
            return None
        extents = inferred.graph.output[0].type.tensor_type.shape.dim
        return tuple(extent.dim_value for extent in extents)

    def model(self, outputs: list[str]) -> onnx.ModelProto:
        """Return the model."""
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        image = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        graph = helper.make_graph(self.nodes, "net", [image], values, self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)

    def other(self, shape: Shape, fits: Callable[[Shape], bool]) -> str:
        """Return a value whose shape fits."""
        return self.draw.choice([name for name, own in self.values.items() if len(own) == len(shape) and fits(own)])


def convolved(net: Grown, x: str, shape: Shape) -> str | None:
    draw, channels, rank = net.draw, shape[1], len(shape) - 2
    kernel, filters, groups = draw.choice([1, 1, 2, 3, 3, 3, 5]), draw.choice([4, 8, 16, 24, 32]), 1
    if draw.random() < 0.25:
        groups, filters = channels, channels * draw.choice([1, 1, 2])
    elif draw.random() < 0.2 and channels % 4 == 0:
        groups = draw.choice([2, 4])
    before, after = draw.choice([(0, 0), (kernel // 2,) * 2, (kernel // 2,) * 2, (1, 2)])
    dilation = draw.choice([1, 1, 1, 2])
    if min(shape[2:]) < (kernel - 1) * dilation + 1 or max(before, after) >= kernel:
        return None
    inputs = [x, net.weight((filters, channels // groups, *[kernel] * rank), 2.0**-5)]
    if draw.random() < 0.7:
        inputs.append(net.bias(np.full(filters, 2.0**-5)))
    return net.node(
        "Conv", *inputs, group=groups, strides=[draw.choice([1, 1, 1, 2])] * rank, dilations=[dilation] * rank,
        pads=[before] * rank + [after] * rank,
    )  # fmt: skip


def transposed(net: Grown, x: str, shape: Shape) -> str:
    kernel = net.draw.choice([2, 3])
    return net.node("ConvTranspose", x, net.weight((shape[1], 8, kernel, kernel), 2.0**-5, axis=1), strides=[2, 2])


def pooled(net: Grown, x: str, shape: Shape) -> str:
    size = net.draw.choice([2, 3])
    windows: dict[str, Any] = {
        "kernel_shape": [size] * (len(shape) - 2), "strides": [net.draw.choice([1, 2])] * (len(shape) - 2),
        "pads": [net.draw.choice([0, 1])] * 2 * (len(shape) - 2),
    }  # fmt: skip
    if not any(windows["pads"]):  # with both, what ONNX infers is more than there is
        windows["ceil_mode"] = net.draw.choice([0, 0, 1])
    if net.draw.random() < 0.5:
        return net.node("MaxPool", x, **windows)
    return net.node("AveragePool", x, count_include_pad=net.draw.choice([0, 1]), **windows)


def resized(net: Grown, x: str, shape: Shape) -> str:
    mode, how = net.draw.choice(["nearest", "linear"]), net.draw.choice(["asymmetric", "half_pixel"])
    scales = net.tensor(np.array([1, 1, 2, 2], np.float32))
    return net.node("Resize", x, "", scales, mode=mode, coordinate_transformation_mode=how, nearest_mode="floor")


def reduced(net: Grown, x: str, shape: Shape) -> str:
    axes = net.draw.choice([[*range(2, len(shape))], [*range(2, len(shape))], [1], [-1]])
    operator, keep = net.draw.choice(["ReduceMean", "ReduceMean", "ReduceMax"]), net.draw.choice([0, 1, 1])
    return net.node(operator, x, axes=axes, keepdims=keep)


def multiplied(net: Grown, x: str, shape: Shape) -> str | None:
    if shape[-1] > 512:
        return None
    return net.node("MatMul", x, net.weight((shape[-1], net.draw.choice([3, 8, 10, 24])), 2.0**-5, axis=1))


def attended(net: Grown, x: str, shape: Shape) -> str:
    y = net.other(shape, lambda own: own[:-2] == shape[:-2])
    axes = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    return net.node("MatMul", x, net.node("Transpose", y, perm=axes))


def combined(net: Grown, x: str, shape: Shape) -> str:
    y = net.other(shape, lambda own: all(1 in pair or pair[0] == pair[1] for pair in zip(own, shape, strict=True)))
    pair = [x, y] if net.draw.random() < 0.5 else [y, x]
    return net.node(net.draw.choice(["Add", "Add", "Mul", "Sub"]), *pair)


def scaled(net: Grown, x: str, shape: Shape) -> str:
    extents: Shape = net.draw.choice([(), (shape[-1],), (1, shape[1], *[1] * (len(shape) - 2)) if shape[1:] else ()])
    return net.node(net.draw.choice(["Add", "Mul"]), x, net.tensor(net.random.integers(-4, 5, extents).astype("f4")))


def joined(net: Grown, x: str, shape: Shape) -> str:
    y = net.other(shape, lambda own: own[:1] + own[2:] == shape[:1] + shape[2:])
    return net.node("Concat", x, y, axis=1)


def curved(net: Grown, x: str, shape: Shape) -> str:
    operator = net.draw.choice(
        ["Relu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "LeakyRelu", "Abs", "Neg", "Clip"]
    )
    bounds = [net.tensor(np.float32(bound)) for bound in (0, 6)] if operator == "Clip" else []
    return net.node(operator, x, *bounds)


def padded(net: Grown, x: str, shape: Shape) -> str:
    pads = [0, 0, *[1] * (len(shape) - 2), 0, 0, *[2] * (len(shape) - 2)]
    return net.node("Pad", x, net.tensor(np.array(pads)), net.tensor(np.float32(0)))


def moved(net: Grown, x: str, shape: Shape) -> str:
    axes = [*range(1, len(shape))]
    net.draw.shuffle(axes)
    return net.node("Transpose", x, perm=[0, *axes])


def reshaped(net: Grown, x: str, shape: Shape) -> str:
    extents = net.draw.choice([[0, -1], [0, 0, -1], [0, 0, 1, -1], [-1, shape[-1]]])
    return net.node("Reshape", x, net.tensor(np.array(extents[: len(shape) + 1])))


def sliced(net: Grown, x: str, shape: Shape) -> str:
    axis, step = net.draw.choice([1, len(shape) - 1]), net.draw.choice([1, 1, 2])
    begin, end = (net.tensor(np.array([number])) for number in (shape[axis] // 3, shape[axis]))
    return net.node("Slice", x, begin, end, net.tensor(np.array([axis])), net.tensor(np.array([step])))


def normalized(net: Grown, x: str, shape: Shape) -> str:
    return net.node("Softmax", x, axis=-1)


Operator = Callable[[Grown, str, Shape], "str | None"]
IMAGES, LINES, ALL = (4,), (3, 4), (2, 3, 4)


OPERATORS: list[tuple[tuple[int, ...], Operator]] = [
    *[(LINES, convolved)] * 6, (IMAGES, transposed), *[(LINES, pooled)] * 2, (IMAGES, resized), (LINES, reduced),
    *[(ALL, multiplied)] * 2, (LINES, attended), *[(ALL, combined)] * 3, (ALL, scaled), (ALL, joined),
    *[(ALL, curved)] * 2, (LINES, padded), (LINES, moved), (ALL, reshaped), (ALL, sliced), (ALL, normalized),
]  # fmt: skip
"""Numbers of axes, and what is added."""


def grown(draw: Random) -> tuple[Grown, onnx.ModelProto]:
    """Return a random model, whose input is x."""
    net = Grown(draw)
    for _ in range(draw.randint(2, 9)):
        net.grow()
    values = list(net.values)
    model = net.model([*dict.fromkeys([values[-1], draw.choice(values)])])
    return net, onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
