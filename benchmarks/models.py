"""Well-known architectures with seeded random weights, for measuring speed: their accuracy means nothing.

    python -m benchmarks.models resnet50 -o resnet50.onnx

Every builder gives opset 18, batch 1 and float32, batch norm left separate (as exporters write it), weights scaled so
that activations keep their magnitude (He et al. 2015).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET, IR = 18, 10


class Graph:
    """A growing graph; each method adds nodes and returns the name of their output."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self._name, self._rng = name, np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._channels: dict[str, int] = {}

    def input(self, name: str, *shape: int) -> str:
        """Declare the float32 input."""
        self._input = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        self._channels[name] = shape[1]
        return name

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Add one node with one output."""
        name = f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        if inputs[0] in self._channels:
            self._channels[name] = self._channels[inputs[0]]
        return name

    def constant(self, values: np.ndarray) -> str:
        """Add an initializer."""
        name = f"weight_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def normal(self, *shape: int, scale: float) -> str:
        """Add a float32 initializer with normally distributed values."""
        return self.constant((self._rng.standard_normal(shape) * scale).astype(np.float32))

    def conv(
        self, x: str, channels: int, kernel: int = 1, stride: int = 1, group: int = 1, act: str | None = "Relu"
    ) -> str:
        """Add convolution, batch norm and activation (Relu, Clip to 6, Silu or none)."""
        fan_in = self._channels[x] // group * kernel * kernel
        weight = self.normal(channels, self._channels[x] // group, kernel, kernel, scale=(2 / fan_in) ** 0.5)
        pad = kernel // 2
        y = self.op("Conv", x, weight, group=group, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4)
        self._channels[y] = channels
        statistics = [
            self.constant(self._rng.uniform(low, high, channels).astype(np.float32))
            for low, high in ((0.9, 1.1), (-0.1, 0.1), (-0.1, 0.1), (0.9, 1.1))
        ]
        y = self.op("BatchNormalization", y, *statistics)
        return y if act is None else self.activate(y, act)

    def activate(self, x: str, act: str) -> str:
        """Add an activation by name."""
        if act == "Clip":
            low, high = (self.constant(np.float32(limit)) for limit in (0, 6))
            return self.op("Clip", x, low, high)
        if act == "Silu":
            return self.op("Mul", x, self.op("Sigmoid", x))
        return self.op(act, x)

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        """Add a fully connected layer over the last axis of a 2-d value."""
        weight = self.normal(outputs, inputs, scale=inputs**-0.5)
        return self.op("Gemm", x, weight, self.normal(outputs, scale=0.01), transB=1)

    def classifier(self, x: str, classes: int = 1000) -> str:
        """Add global average pooling and a fully connected layer."""
        return self.dense(self.op("Flatten", self.op("GlobalAveragePool", x)), self._channels[x], classes)

    def model(self, *outputs: str) -> onnx.ModelProto:
        """Return the checked model; output shapes are inferred."""
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self._nodes, self._name, [self._input], infos, self._weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
        made = onnx.shape_inference.infer_shapes(made, strict_mode=True)
        onnx.checker.check_model(made)
        return made


def resnet18() -> onnx.ModelProto:
    """He et al. 2016, 18 layers, 224x224."""
    return _resnet("resnet18", (2, 2, 2, 2), bottleneck=False)


def resnet50() -> onnx.ModelProto:
    """He et al. 2016, 50 layers, 224x224, stride in the 3x3 convolution (v1.5)."""
    return _resnet("resnet50", (3, 4, 6, 3), bottleneck=True)


def _resnet(name: str, depths: Sequence[int], *, bottleneck: bool) -> onnx.ModelProto:
    g = Graph(name)
    x = g.conv(g.input("image", 1, 3, 224, 224), 64, 7, 2)
    x = g.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    expansion = 4 if bottleneck else 1
    channels = 64
    for level, depth in enumerate(depths):
        width = 64 << level
        for block in range(depth):
            stride = 2 if block == 0 and level else 1
            if bottleneck:
                y = g.conv(g.conv(x, width), width, 3, stride)
                y = g.conv(y, width * expansion, act=None)
            else:
                y = g.conv(g.conv(x, width, 3, stride), width, 3, act=None)
            if stride != 1 or channels != width * expansion:
                x = g.conv(x, width * expansion, 1, stride, act=None)
            channels = width * expansion
            x = g.op("Relu", g.op("Add", y, x))
    return g.model(g.classifier(x))


def mobilenet_v2() -> onnx.ModelProto:
    """Sandler et al. 2018, width 1.0, 224x224."""
    return _inverted_residuals(
        "mobilenet_v2",
        32,
        ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3), (6, 160, 3, 2, 3),
         (6, 320, 1, 1, 3)),
    )  # fmt: skip


def efficientnet_lite0() -> onnx.ModelProto:
    """Tan and Le 2019 without squeeze-and-excitation and with Relu6: the Lite0 variant, 224x224."""
    return _inverted_residuals(
        "efficientnet_lite0",
        32,
        ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
         (6, 320, 1, 1, 3)),
    )  # fmt: skip


def _inverted_residuals(name: str, stem: int, rows: Sequence[tuple[int, int, int, int, int]]) -> onnx.ModelProto:
    """Build from rows of (expansion, channels, repeats, first stride, kernel)."""
    g = Graph(name)
    x = g.conv(g.input("image", 1, 3, 224, 224), stem, 3, 2, act="Clip")
    before = stem
    for expansion, channels, repeats, first, kernel in rows:
        for index in range(repeats):
            stride = first if index == 0 else 1
            hidden = before * expansion
            y = x if expansion == 1 else g.conv(x, hidden, act="Clip")
            y = g.conv(y, hidden, kernel, stride, group=hidden, act="Clip")
            y = g.conv(y, channels, act=None)
            x = g.op("Add", x, y) if stride == 1 and before == channels else y
            before = channels
    return g.model(g.classifier(g.conv(x, 1280, act="Clip")))


def yolo_nano() -> onnx.ModelProto:
    """A detector of the YOLOv5-nano kind: SiLU, CSP blocks, a pyramid with nearest upsampling, 320x320."""
    g = Graph("yolo_nano")

    def csp(x: str, channels: int, depth: int) -> str:
        left, right = g.conv(x, channels // 2, act="Silu"), g.conv(x, channels // 2, act="Silu")
        for _ in range(depth):
            y = g.conv(g.conv(left, channels // 2, act="Silu"), channels // 2, 3, act="Silu")
            left = g.op("Add", left, y)
        return joined(left, right, channels)

    def joined(left: str, right: str, channels: int) -> str:
        both = g.op("Concat", left, right, axis=1)
        g._channels[both] = g._channels[left] + g._channels[right]
        return g.conv(both, channels, act="Silu")

    def upsampled(x: str) -> str:
        scales = g.constant(np.array([1, 1, 2, 2], np.float32))
        return g.op(
            "Resize", x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        )

    x = g.conv(g.input("image", 1, 3, 320, 320), 16, 5, 2, act="Silu")
    x = csp(g.conv(x, 32, 3, 2, act="Silu"), 32, 1)
    small = csp(g.conv(x, 64, 3, 2, act="Silu"), 64, 2)
    middle = csp(g.conv(small, 128, 3, 2, act="Silu"), 128, 3)
    large = csp(g.conv(middle, 256, 3, 2, act="Silu"), 256, 1)
    pooled = [large := g.conv(large, 128, act="Silu")]
    for _ in range(3):
        pooled.append(g.op("MaxPool", pooled[-1], kernel_shape=[5, 5], pads=[2, 2, 2, 2]))
    both = g.op("Concat", *pooled, axis=1)
    g._channels[both] = 4 * 128
    large = g.conv(g.conv(both, 256, act="Silu"), 128, act="Silu")
    middle = csp(joined(upsampled(large), middle, 128), 128, 1)
    reduced = g.conv(middle, 64, act="Silu")
    small = csp(joined(upsampled(reduced), small, 64), 64, 1)
    middle = csp(joined(g.conv(small, 64, 3, 2, act="Silu"), reduced, 128), 128, 1)
    large = csp(joined(g.conv(middle, 128, 3, 2, act="Silu"), large, 256), 256, 1)
    return g.model(*(g.op("Sigmoid", g.conv(level, 255, act=None)) for level in (small, middle, large)))


def encoder(layers: int = 4, width: int = 768, heads: int = 12, tokens: int = 128) -> onnx.ModelProto:
    """Devlin et al. 2019: a stack of BERT-base encoder layers on [1, tokens, width], softmax attention and GELU."""
    g = Graph("encoder")
    x = g.input("hidden", 1, tokens, width)
    split = g.constant(np.array([1, tokens, heads, width // heads], np.int64))
    merge = g.constant(np.array([1, tokens, width], np.int64))
    scale = g.constant(np.float32((width // heads) ** -0.5))

    def linear(value: str, inputs: int, outputs: int) -> str:
        product = g.op("MatMul", value, g.normal(inputs, outputs, scale=inputs**-0.5))
        return g.op("Add", product, g.normal(outputs, scale=0.01))

    def norm(value: str) -> str:
        gamma, beta = g.constant(np.ones(width, np.float32)), g.constant(np.zeros(width, np.float32))
        return g.op("LayerNormalization", value, gamma, beta, axis=-1, epsilon=1e-12)

    def head(value: str, perm: list[int]) -> str:
        return g.op("Transpose", g.op("Reshape", linear(value, width, width), split), perm=perm)

    def gelu(value: str) -> str:
        half, one, root = (g.constant(np.float32(item)) for item in (0.5, 1, 2**-0.5))
        erf = g.op("Add", g.op("Erf", g.op("Mul", value, root)), one)
        return g.op("Mul", g.op("Mul", value, erf), half)

    for _ in range(layers):
        query, key, content = (head(x, perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        weights = g.op("Softmax", g.op("Mul", g.op("MatMul", query, key), scale), axis=-1)
        mixed = g.op("Reshape", g.op("Transpose", g.op("MatMul", weights, content), perm=[0, 2, 1, 3]), merge)
        x = norm(g.op("Add", linear(mixed, width, width), x))
        x = norm(g.op("Add", linear(gelu(linear(x, width, 4 * width)), 4 * width, width), x))
    return g.model(x)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "efficientnet_lite0": efficientnet_lite0,
    "yolo_nano": yolo_nano,
    "encoder": encoder,
}


def main() -> None:
    """Write one model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=sorted(MODELS))
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    onnx.save(MODELS[arguments.name](), arguments.output)


if __name__ == "__main__":
    main()
