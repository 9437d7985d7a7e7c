"""Signed activations: int8 with any zero point, computed in integers and equal to ONNX Runtime's to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.codegen.test_integer import Net, check, convolution, exact_scales

SIGNED = (0.5, -15)
OUT = (64.0, 3)


class SignedNet(Net):
    """A QDQ model whose activations are int8."""

    def pair(self, x: str, affine: tuple[float, int]) -> str:
        scale, zero = (
            self.tensor(np.float32(affine[0])),
            self.tensor(np.int8(affine[1] - 128 if affine[1] > 50 else affine[1])),
        )
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, scale, zero), scale, zero)


def bordered(model: onnx.ModelProto, x: Any) -> tuple[onnx.ModelProto, Any]:
    """Return ``model`` without its first QuantizeLinear and its last DequantizeLinear, and the bytes that it takes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    first, last = copy.graph.node[0], copy.graph.node[-1]
    scale, zero = (
        onnx.numpy_helper.to_array(t) for name in first.input[1:] for t in copy.graph.initializer if t.name == name
    )
    copy.graph.input[0].type.tensor_type.elem_type = TensorProto.INT8
    copy.graph.node.remove(first)
    copy.graph.node.remove(last)
    for node in copy.graph.node:
        for place, name in enumerate(node.input):
            if name == first.output[0]:
                node.input[place] = "x"
    del copy.graph.output[:]
    copy.graph.output.append(helper.make_tensor_value_info(last.input[0], TensorProto.INT8, None))
    copy = onnx.shape_inference.infer_shapes(copy, strict_mode=True)
    return copy, np.clip(np.rint(x / scale) + zero, -128, 127).astype(np.int8)


def product(net: Net) -> str:
    x = net.pair("x", SIGNED)
    return net.node("MatMul", x, net.weight((24, 10), exact_scales(10), axis=1))


def whole(net: Net) -> str:
    """Return the result of a small network with a branch, a maximum, a function of a byte, and a mean."""
    x = net.pair(convolution(net, 3, 16, 3, pads=[1] * 4), OUT)
    y = net.pair(net.node("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4), OUT)
    y = net.pair(net.node("Add", x, y), (128.0, -7))
    y = net.pair(net.node("LeakyRelu", y, alpha=0.25), (64.0, -60))
    return net.node("Flatten", net.pair(net.node("GlobalAveragePool", y), (64.0, -100)))


NETS = {
    "convolution": ((2, 16, 9, 9), lambda net: convolution(net, 16, 32, 3, pads=[1] * 4)),
    "three channels": ((1, 3, 12, 12), lambda net: convolution(net, 3, 8, 3, strides=[2, 2])),
    "depthwise": ((1, 24, 8, 8), lambda net: convolution(net, 24, 24, 3, 24, pads=[1] * 4)),
    "product": ((5, 24), product),
    "network": ((1, 3, 8, 8), whole),
}


@pytest.mark.parametrize("case", NETS)
def test_signed_activations_store_what_onnx_runtime_stores(case: str) -> None:
    shape, layers = NETS[case]
    net = SignedNet(*shape)
    check(net, net.pair(layers(net), OUT))
