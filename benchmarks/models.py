"""Well-known architectures with random weights, as ONNX models: what the benchmarks measure beside real models.

Weights are drawn so that activations keep their scale (He et al., "Delving Deep into Rectifiers", 2015), since
denormals and infinities would falsify a measurement. The same name always gives the same bytes.

    python -m benchmarks.models resnet50 --output resnet50.onnx
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 10

Array = np.ndarray[Any, Any]


class Net:
    """An ONNX graph under construction: every method appends nodes and returns the name of their output."""

    def __init__(self, name: str, shape: Sequence[int], seed: int = 0) -> None:
        self.name, self.shape = name, tuple(shape)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(seed)

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Append one node with one output."""
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def weight(self, values: Array | np.float32) -> str:
        """Append an initializer."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def normal(self, *shape: int, fan_in: int, gain: float = 2.0) -> str:
        """Append a normally distributed float32 weight of variance ``gain / fan_in``."""
        return self.weight((self.random.standard_normal(shape) * np.sqrt(gain / fan_in)).astype(np.float32))

    def conv(
        self, x: str, channels: int, filters: int, kernel: int, stride: int = 1, groups: int = 1, gain: float = 2.0
    ) -> str:
        """Append a convolution with bias, padded to keep the size at stride 1."""
        weight = self.normal(
            filters, channels // groups, kernel, kernel, fan_in=channels // groups * kernel**2, gain=gain
        )
        bias = self.normal(filters, fan_in=100)
        return self.node(
            "Conv", x, weight, bias, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4,
            group=groups,
        )  # fmt: skip

    def relu(self, x: str) -> str:
        """Append Relu."""
        return self.node("Relu", x)

    def relu6(self, x: str) -> str:
        """Append Clip to 0..6."""
        return self.node("Clip", x, self.weight(np.float32(0)), self.weight(np.float32(6)))

    def silu(self, x: str) -> str:
        """Append x * sigmoid(x)."""
        return self.node("Mul", x, self.node("Sigmoid", x))

    def classifier(self, x: str, channels: int, classes: int = 1000) -> str:
        """Append global pooling and a fully connected layer."""
        flat = self.node("Flatten", self.node("GlobalAveragePool", x), axis=1)
        weight = self.normal(classes, channels, fan_in=channels)
        return self.node("Gemm", flat, weight, self.normal(classes, fan_in=100), transB=1)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        """Append x @ W + b."""
        product = self.node("MatMul", x, self.normal(inputs, outputs, fan_in=inputs, gain=1.0))
        return self.node("Add", product, self.normal(outputs, fan_in=100))

    def layer_norm(self, x: str, width: int) -> str:
        """Append LayerNormalization over the last axis."""
        scale = self.weight(np.ones(width, np.float32))
        return self.node("LayerNormalization", x, scale, self.normal(width, fan_in=100), axis=-1, epsilon=1e-5)

    def reshape(self, x: str, *shape: int) -> str:
        """Append Reshape."""
        return self.node("Reshape", x, self.weight(np.array(shape, np.int64)))

    def finish(self, *outputs: str) -> onnx.ModelProto:
        """Return the checked model; output shapes are inferred."""
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        image = helper.make_tensor_value_info("input", TensorProto.FLOAT, self.shape)
        graph = helper.make_graph(self.nodes, self.name, [image], values, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        onnx.checker.check_model(model, full_check=True)
        return model


def resnet18() -> onnx.ModelProto:
    """Return ResNet-18 at 224x224 (He et al., 2015), batch normalization folded."""
    net = Net("resnet18", (1, 3, 224, 224))
    x = net.node("MaxPool", net.relu(net.conv("input", 3, 64, 7, 2)), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for filters, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        y = net.relu(net.conv(x, channels, filters, 3, stride))
        y = net.conv(y, filters, filters, 3, gain=0.5)
        skip = x if channels == filters else net.conv(x, channels, filters, 1, stride, gain=1.0)
        x, channels = net.relu(net.node("Add", y, skip)), filters
    return net.finish(net.classifier(x, channels))


def resnet50() -> onnx.ModelProto:
    """Return ResNet-50 v1.5 at 224x224 (He et al., 2015; stride in the 3x3), batch normalization folded."""
    net = Net("resnet50", (1, 3, 224, 224))
    x = net.node("MaxPool", net.relu(net.conv("input", 3, 64, 7, 2)), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for width, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            stride = first if block == 0 else 1
            y = net.relu(net.conv(x, channels, width, 1))
            y = net.relu(net.conv(y, width, width, 3, stride))
            y = net.conv(y, width, 4 * width, 1, gain=0.5)
            skip = x if block else net.conv(x, channels, 4 * width, 1, stride, gain=1.0)
            x, channels = net.relu(net.node("Add", y, skip)), 4 * width
    return net.finish(net.classifier(x, channels))


def mobilenet_v1() -> onnx.ModelProto:
    """Return MobileNet v1 at 224x224 (Howard et al., 2017)."""
    net = Net("mobilenet_v1", (1, 3, 224, 224))
    x, channels = net.relu6(net.conv("input", 3, 32, 3, 2)), 32
    rows = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
    for filters, stride in rows:
        x = net.relu6(net.conv(x, channels, channels, 3, stride, groups=channels))
        x, channels = net.relu6(net.conv(x, channels, filters, 1)), filters
    return net.finish(net.classifier(x, channels))


def _inverted_bottlenecks(
    net: Net, x: str, channels: int, rows: Sequence[tuple[int, int, int, int, int]]
) -> tuple[str, int]:
    """Append MBConv blocks; a row holds expansion, filters, repeats, stride and kernel."""
    for expansion, filters, repeats, first, kernel in rows:
        for block in range(repeats):
            stride = first if block == 0 else 1
            wide = channels * expansion
            y = net.relu6(net.conv(x, channels, wide, 1)) if expansion > 1 else x
            y = net.relu6(net.conv(y, wide, wide, kernel, stride, groups=wide))
            y = net.conv(y, wide, filters, 1, gain=1.0)
            x = net.node("Add", x, y) if stride == 1 and channels == filters else y
            channels = filters
    return x, channels


def mobilenet_v2() -> onnx.ModelProto:
    """Return MobileNet v2 at 224x224 (Sandler et al., 2018)."""
    net = Net("mobilenet_v2", (1, 3, 224, 224))
    rows = (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 32, 3, 2, 3),
        (6, 64, 4, 2, 3),
        (6, 96, 3, 1, 3),
        (6, 160, 3, 2, 3),
        (6, 320, 1, 1, 3),
    )
    x, channels = _inverted_bottlenecks(net, net.relu6(net.conv("input", 3, 32, 3, 2)), 32, rows)
    return net.finish(net.classifier(net.relu6(net.conv(x, channels, 1280, 1)), 1280))


def efficientnet_lite0() -> onnx.ModelProto:
    """Return EfficientNet-Lite0 at 224x224 (Tan and Le, 2019, without squeeze-excitation, with ReLU6)."""
    net = Net("efficientnet_lite0", (1, 3, 224, 224))
    rows = (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )
    x, channels = _inverted_bottlenecks(net, net.relu6(net.conv("input", 3, 32, 3, 2)), 32, rows)
    return net.finish(net.classifier(net.relu6(net.conv(x, channels, 1280, 1)), 1280))


def _csp(net: Net, x: str, channels: int, repeats: int, residual: bool) -> str:
    """Append a cross-stage partial block of YOLO: split, bottlenecks, concatenate, mix."""
    half = channels // 2
    y = net.silu(net.conv(x, channels, channels, 1))
    sizes = net.weight(np.array([half, half], np.int64))
    parts = [f"v{len(net.nodes)}_a", f"v{len(net.nodes)}_b"]
    net.nodes.append(helper.make_node("Split", [y, sizes], parts, axis=1))
    for _ in range(repeats):
        z = net.silu(net.conv(parts[-1], half, half, 3))
        z = net.silu(net.conv(z, half, half, 3, gain=1.0))
        parts.append(net.node("Add", parts[-1], z) if residual else z)
    return net.silu(net.conv(net.node("Concat", *parts, axis=1), half * len(parts), channels, 1))


def yolo_nano() -> onnx.ModelProto:
    """Return a detector of the size and shape of YOLOv8n at 320x320: CSP backbone, two-way neck, three heads."""
    net = Net("yolo_nano", (1, 3, 320, 320))
    x = net.silu(net.conv("input", 3, 16, 3, 2))
    x = _csp(net, net.silu(net.conv(x, 16, 32, 3, 2)), 32, 1, True)
    p3 = _csp(net, net.silu(net.conv(x, 32, 64, 3, 2)), 64, 2, True)
    p4 = _csp(net, net.silu(net.conv(p3, 64, 128, 3, 2)), 128, 2, True)
    p5 = _csp(net, net.silu(net.conv(p4, 128, 256, 3, 2)), 256, 1, True)
    pools = [net.silu(net.conv(p5, 256, 128, 1))]
    for _ in range(3):
        pools.append(net.node("MaxPool", pools[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4))
    p5 = net.silu(net.conv(net.node("Concat", *pools, axis=1), 512, 256, 1))

    def up(x: str) -> str:
        scales = net.weight(np.array([1, 1, 2, 2], np.float32))
        return net.node(
            "Resize", x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        )

    def mix(a: str, b: str, channels: int, filters: int) -> str:
        joined = net.silu(net.conv(net.node("Concat", a, b, axis=1), channels, filters, 1))
        return _csp(net, joined, filters, 1, False)

    n4 = mix(up(p5), p4, 384, 128)
    n3 = mix(up(n4), p3, 192, 64)
    n4 = mix(net.silu(net.conv(n3, 64, 64, 3, 2)), n4, 192, 128)
    n5 = mix(net.silu(net.conv(n4, 128, 128, 3, 2)), p5, 384, 256)
    rows = []
    for x, channels, size in ((n3, 64, 40), (n4, 128, 20), (n5, 256, 10)):
        box = net.conv(net.silu(net.conv(net.silu(net.conv(x, channels, 64, 3)), 64, 64, 3)), 64, 64, 1)
        label = net.conv(net.silu(net.conv(net.silu(net.conv(x, channels, 80, 3)), 80, 80, 3)), 80, 80, 1)
        rows.append(net.reshape(net.node("Concat", box, label, axis=1), 1, 144, size * size))
    everything = net.node("Concat", *rows, axis=2)
    return net.finish(net.node("Sigmoid", everything))


def bert_encoder(layers: int = 2, tokens: int = 128, width: int = 768, heads: int = 12) -> onnx.ModelProto:
    """Return encoder layers of BERT-base (Devlin et al., 2018) over embedded tokens, GELU by the error function."""
    net = Net("bert_encoder", (1, tokens, width))
    x, size = "input", width // heads
    for _ in range(layers):
        query, key, value = (
            net.node("Transpose", net.reshape(net.linear(x, width, width), 1, tokens, heads, size), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = net.node("Div", net.node("MatMul", query, key), net.weight(np.float32(np.sqrt(size))))
        mixed = net.node("MatMul", net.node("Softmax", scores, axis=-1), value)
        joined = net.reshape(net.node("Transpose", mixed, perm=[0, 2, 1, 3]), 1, tokens, width)
        x = net.layer_norm(net.node("Add", x, net.linear(joined, width, width)), width)
        y = net.linear(x, width, 4 * width)
        half, one, root = (net.weight(np.float32(value)) for value in (0.5, 1.0, np.sqrt(2.0)))
        error = net.node("Add", net.node("Erf", net.node("Div", y, root)), one)
        y = net.node("Mul", net.node("Mul", y, error), half)
        x = net.layer_norm(net.node("Add", x, net.linear(y, 4 * width, width)), width)
    return net.finish(x)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "mobilenet_v1": mobilenet_v1,
    "mobilenet_v2": mobilenet_v2,
    "efficientnet_lite0": efficientnet_lite0,
    "yolo_nano": yolo_nano,
    "bert_encoder": bert_encoder,
}


def main(arguments: Sequence[str]) -> int:
    """Write one model to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("--output", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    onnx.save(MODELS[chosen.model](), chosen.output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
