"""Signed activations: int8 with any zero point, computed in integers and equal to ONNX Runtime's to the last bit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from forge_pipeline.codegen.lowering import lower
from forge_pipeline.codegen.onnx_import.importer import import_model
from forge_pipeline.target import Target
from tests.support.int8.compare import HERE, OPTIONS, check, compiled, reference
from tests.support.int8.net import Net, convolution, exact_scales

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


def in_bytes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` without its first QuantizeLinear and its last DequantizeLinear: int8 in, int8 out."""
    first, *inner, last = model.graph.node
    for node in inner:
        node.input[:] = ["x" if name == first.output[0] else name for name in node.input]
    image = helper.make_tensor_value_info(
        "x", TensorProto.INT8, [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    )
    result = helper.make_tensor_value_info(last.input[0], TensorProto.INT8, None)
    graph = helper.make_graph(inner, "net", [image], [result], model.graph.initializer)
    made = helper.make_model(graph, opset_imports=model.opset_import, ir_version=10)
    return onnx.shape_inference.infer_shapes(made, strict_mode=True)


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


@pytest.mark.every(6)
@pytest.mark.parametrize("case", NETS)
def test_signed_activations_store_what_onnx_runtime_stores(case: str) -> None:
    shape, layers = NETS[case]
    net = SignedNet(*shape)
    check(net, net.pair(layers(net), OUT))


def test_a_model_whose_inputs_and_outputs_are_signed_bytes_keeps_them() -> None:
    net = SignedNet(1, 16, 9, 9)
    model = in_bytes(net.finish(net.pair(convolution(net, 16, 32, 3, pads=[1] * 4), OUT)))
    x = net.random.integers(-128, 128, net.shape).astype(np.int8)
    found, (wanted,) = compiled(model)(x)[0], reference(model, x, optimized=False)
    assert found.dtype == np.int8
    np.testing.assert_array_equal(found, wanted)


def test_signed_bytes_beside_others_keep_their_sign() -> None:
    net = SignedNet(1, 16, 9, 9)
    scale, zero = net.tensor(np.float32(SIGNED[0])), net.tensor(np.int8(SIGNED[1]))
    q = net.node("QuantizeLinear", "x", scale, zero)
    doubled = net.node(
        "Cast", net.node("Mul", net.node("Cast", q, to=TensorProto.INT32), net.tensor(np.int32(2))), to=TensorProto.INT8
    )
    y = net.node("Concat", q, doubled, axis=1)
    check(net, net.node("DequantizeLinear", y, scale, zero))


def test_signed_bytes_that_are_only_moved_are_stored_as_unsigned_ones() -> None:
    net = SignedNet(2, 16, 9, 9)
    scale, zero = net.tensor(np.float32(SIGNED[0])), net.tensor(np.int8(SIGNED[1]))
    q = net.node("QuantizeLinear", "x", scale, zero)
    largest = net.node("MaxPool", q, kernel_shape=[3, 3], pads=[1] * 4)
    moved = net.node("Transpose", net.node("Concat", q, largest, axis=1), perm=[0, 1, 3, 2])
    y = net.node("DequantizeLinear", moved, scale, zero)
    main = lower(import_model(net.finish(y)), Target.from_tag(HERE), OPTIONS).module["main"]  # prepared: in floats
    assert "signed" not in main.script(show_meta=False)
    check(net, y)


def test_signed_bytes_are_the_same_numbers_in_any_other_type() -> None:
    net = SignedNet(2, 16, 9, 9)
    scale, zero = net.tensor(np.float32(SIGNED[0])), net.tensor(np.int8(SIGNED[1]))
    cast = net.node("Cast", net.node("QuantizeLinear", "x", scale, zero), to=TensorProto.FLOAT)
    model = net.finish(net.node("Mul", cast, net.tensor(np.float32(0.5))))
    x = (net.random.standard_normal(net.shape) * 40).astype(np.float32)
    found, wanted = compiled(model, in_float="cast")(x)[0], reference(model, x, optimized=False)[0]
    np.testing.assert_array_equal(found, wanted)


def test_a_signed_zero_point_that_is_computed_is_left_as_it_is() -> None:
    net = SignedNet(1, 16, 9, 9)
    scale = net.tensor(np.float32(SIGNED[0]))
    place = net.node("ReduceMax", net.node("ArgMax", "x", axis=3), keepdims=0)
    zero = net.node("Cast", place, to=TensorProto.INT8)
    q = net.node("QuantizeLinear", "x", scale, zero)
    model = net.finish(net.node("DequantizeLinear", q, scale, zero))
    x = (net.random.standard_normal(net.shape) * 4).astype(np.float32)
    found, wanted = compiled(model)(x)[0], reference(model, x, optimized=False)[0]
    np.testing.assert_array_equal(found, wanted)
