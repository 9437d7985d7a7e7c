"""Quantized models under construction, in QDQ form."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

IN, OUT = (0.5, 113), (64.0, 7)


class Net:
    """A QDQ model under construction; every method returns the name of a value."""

    def __init__(self, *shape: int, seed: int = 0) -> None:
        self.shape = shape
        self.random: Any = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def tensor(self, array: Any) -> str:
        name = f"t{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def pair(self, x: str, affine: tuple[float, int]) -> str:
        """Append QuantizeLinear and DequantizeLinear."""
        scale, zero = self.tensor(np.float32(affine[0])), self.tensor(np.uint8(affine[1]))
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, scale, zero), scale, zero)

    def weight(self, shape: tuple[int, ...], scale: Any, axis: int = 0, largest: int = 127) -> str:
        """Append int8 weights behind a DequantizeLinear."""
        stored = self.tensor(self.random.integers(-largest, largest + 1, shape).astype(np.int8))
        zero = self.tensor(np.zeros(np.shape(scale), np.int8))
        return self.node("DequantizeLinear", stored, self.tensor(np.asarray(scale, np.float32)), zero, axis=axis)

    def bias(self, scale: Any) -> str:
        """Append an int32 bias behind a DequantizeLinear."""
        stored = self.tensor(self.random.integers(-20000, 20000, np.shape(scale)).astype(np.int32))
        zero = self.tensor(np.zeros(np.shape(scale), np.int32))
        return self.node("DequantizeLinear", stored, self.tensor(np.asarray(scale, np.float32)), zero, axis=0)

    def finish(self, *outputs: str) -> onnx.ModelProto:
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        image = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        graph = helper.make_graph(self.nodes, "net", [image], values, self.tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def exact_scales(count: int) -> Any:
    return 2.0 ** -(np.arange(count) % 3).astype(np.float32)


def convolution(net: Net, channels: int, filters: int, kernel: int, groups: int = 1, **attributes: Any) -> str:
    x = net.pair("x", IN)
    scale = exact_scales(filters)
    weight = net.weight((filters, channels // groups, kernel, kernel), scale)
    return net.node("Conv", x, weight, net.bias(scale * IN[0]), group=groups, **attributes)


def unsized(model: onnx.ModelProto, *axes: int) -> onnx.ModelProto:
    """Return the model with symbolic extents of its input."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for axis in axes:
        result.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"extent{axis}"
    del result.graph.value_info[:]
    for value in result.graph.output:
        value.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(result, strict_mode=True)
