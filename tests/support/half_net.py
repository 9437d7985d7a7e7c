"""Small float models of what is computed in half precision, and of what is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.options import Options

HALVES = Options(generator="auto", opt_level=3, float16=False, channel_layout=None, float_arithmetic="float16")


class Net:
    """A graph in the making."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, array: np.ndarray) -> str:
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def node(self, kind: str, *inputs: str, name: str = "", **attributes: object) -> str:
        name = name or f"value{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def conv(self, x: str, channels: int, filters: int, kernel: int, *, stride: int = 1, group: int = 1) -> str:
        fan = channels // group * kernel * kernel
        weight = self.random.standard_normal((filters, channels // group, kernel, kernel)) * np.sqrt(2 / fan)
        bias = self.random.standard_normal(filters) * 0.1
        return self.node(
            "Conv", x, self.constant(weight), self.constant(bias), kernel_shape=[kernel] * 2, strides=[stride] * 2,
            pads=[kernel // 2] * 4, group=group,
        )  # fmt: skip

    def finish(self, shape: Sequence[int | str], *outputs: str) -> onnx.ModelProto:
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))
        graph = helper.make_graph(self.nodes, "net", [x], results, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model)


def image_net(shape: Sequence[int | str] = (1, 3, 28, 28), width: int = 40) -> onnx.ModelProto:
    """Convolutions of every kind with what goes on in halves, and what goes back to float32, after them."""
    net = Net()
    first = net.node("Relu", net.conv("x", 3, width, 3, stride=2))
    same = net.conv(net.node("Relu", net.conv(first, width, width, 3)), width, width, 1)
    joined = net.node("Relu", net.node("Add", first, same))
    deep = net.node("Clip", net.conv(joined, width, width, 5, group=width), net.constant(0), net.constant(6))
    pooled = net.node("MaxPool", deep, kernel_shape=[2, 2], strides=[2, 2])
    both = net.node("Concat", pooled, net.conv(pooled, width, 2 * width, 1), axis=1)
    swish = net.node("Mul", both, net.node("Sigmoid", both))
    mean = net.node("Flatten", net.node("GlobalAveragePool", swish))
    weight = net.constant(net.random.standard_normal((3 * width, 50)) / np.sqrt(3 * width))
    logits = net.node("Gemm", mean, weight, net.constant(net.random.standard_normal(50)))
    return net.finish(shape, net.node("Softmax", logits), logits, swish)


def dense_net(rows: Sequence[int | str], steps: int = 384) -> onnx.ModelProto:
    """Two products by constant weights, with a normalization of rows between them."""
    net = Net()
    wide = net.node("MatMul", "x", net.constant(net.random.standard_normal((steps, 200)) / np.sqrt(steps)))
    moved = net.node("Relu", net.node("Add", wide, net.constant(net.random.standard_normal(200))))
    normal = net.node("LayerNormalization", moved, net.constant(np.ones(200)), net.constant(np.zeros(200)))
    return net.finish([*rows, steps], net.node("MatMul", normal, net.constant(net.random.standard_normal((200, 40)))))


def ones_net(kind: str, steps: int) -> onnx.ModelProto:
    """Sums of ``steps`` ones: in halves, one after the other, they end at 2048."""
    net = Net()
    if kind == "Conv":
        weight = net.constant(np.ones((16, steps // 9, 3, 3)))
        return net.finish((1, steps // 9, 6, 6), net.node("Conv", "x", weight, kernel_shape=[3, 3]))
    rows = {"one row": 1, "rows": 21, "open rows": "rows"}[kind]
    return net.finish((rows, steps), net.node("MatMul", "x", net.constant(np.ones((steps, 24)))))


def attention_net(shapes: Mapping[str, Sequence[int | str]]) -> onnx.ModelProto:
    """Return softmax(0.3 q k + mask) v of inputs with these shapes."""
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["products"]),
        helper.make_node("Mul", ["products", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "mask"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["shares"]),
        helper.make_node("MatMul", ["shares", "v"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    scale = numpy_helper.from_array(np.float32(0.3), "scale")
    graph = helper.make_graph(nodes, "net", inputs, [result], [scale])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
