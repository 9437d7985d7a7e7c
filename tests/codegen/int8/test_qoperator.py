"""Operators on integers, as ONNX Runtime's quantizer writes them: compiled to the same kernels, equal to the last bit.

The reference is ONNX Runtime with unsigned weights, for which it widens on every CPU (``ir.saturation``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from forge_pipeline.codegen.build import build
from forge_pipeline.ir.qdq.qoperator import write_out
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.target import Target
from tests.support.emulated.choice import load
from tests.support.int8.compare import HERE, OPTIONS, compiled
from tests.support.int8.net import Net, exact_scales
from tests.support.sums import assert_close, assert_same_sums

IN, OUT, FINE = (0.5, 113), (64.0, 7), (0.25, 120)
MICROSOFT = "com.microsoft"


class Integers(Net):
    """A model of operators on integers under construction; ``signed`` activations are int8."""

    signed = False

    def affine(self, scale: float, zero: int) -> tuple[str, str]:
        return self.tensor(np.float32(scale)), self.tensor(np.int8(zero - 128) if self.signed else np.uint8(zero))

    def operand(self, x: str, affine: tuple[float, int]) -> list[str]:
        """Return a value that is stored as integers, its scale and its zero point."""
        names = self.affine(*affine)
        return [self.node("QuantizeLinear", x, *names), *names]

    def weights(self, shape: tuple[int, ...], channels: int) -> list[str]:
        values = self.random.integers(-127, 128, shape).astype(np.int8)
        scale, zero = self.tensor(exact_scales(channels)), self.tensor(np.zeros(channels, np.int8))
        return [self.tensor(values), scale, zero]

    def sums(self, channels: int) -> str:
        return self.tensor(self.random.integers(-20000, 20000, channels).astype(np.int32))

    def real(self, x: str, affine: tuple[float, int]) -> str:
        return self.node("DequantizeLinear", x, *self.affine(*affine))

    def finish(self, *outputs: str) -> onnx.ModelProto:
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        image = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        graph = helper.make_graph(self.nodes, "net", [image], values, self.tensors)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def reference(model: onnx.ModelProto, x: Any) -> list[Any]:
    return list(Interpreter(model)({"x": x}).values())


def convolution(net: Integers) -> str:
    x, y = net.operand("x", IN), net.affine(*OUT)
    return net.node("QLinearConv", *x, *net.weights((24, 16, 3, 3), 24), *y, net.sums(24), pads=[1] * 4)


def product(net: Integers) -> str:
    weights = net.weights((24, 10), 10)
    return net.node("QLinearMatMul", *net.operand("x", IN), *weights, *net.affine(*OUT))


def gemm(net: Integers) -> str:
    x, w = net.operand("x", IN), net.weights((24, 10), 10)
    return net.node("QGemm", *x, *w, net.sums(10), *net.affine(*OUT), domain=MICROSOFT)


def one(operator: str, **attributes: Any) -> Callable[[Integers], str]:
    return lambda net: net.node(operator, *net.operand("x", IN), *net.affine(*FINE), domain=MICROSOFT, **attributes)


def two(operator: str) -> Callable[[Integers], str]:
    def made(net: Integers) -> str:
        operands = [*net.operand("x", IN), *net.operand("x", (1.0, 99))]
        return net.node(operator, *operands, *net.affine(*OUT), domain=MICROSOFT)

    return made


def joined(net: Integers) -> str:
    parts = [*net.operand("x", IN), *net.operand("x", (1.0, 99))]
    return net.node("QLinearConcat", *net.affine(*OUT), *parts, axis=1, domain=MICROSOFT)


def swish(net: Integers) -> str:
    """Return x times its sigmoid."""
    x, gate = net.operand("x", IN), net.affine(1 / 256, 0)
    y = net.node("QLinearSigmoid", *x, *gate, domain=MICROSOFT)
    return net.node("QLinearMul", *x, y, *gate, *net.affine(*OUT), domain=MICROSOFT)


def moved(net: Integers) -> str:
    """Return what operators that only move integers leave of a convolution's result."""
    x = net.node("MaxPool", convolution(net), kernel_shape=[2, 2], strides=[2, 2])
    x = net.node("Transpose", x, perm=[0, 2, 3, 1])
    return net.node("Flatten", x)


def resized(net: Integers) -> str:
    """Return a linear resize of integers, whose fractions are dropped."""
    x = net.operand("x", IN)
    scales = net.tensor(np.array([1, 1, 2, 2], np.float32))
    y = net.node("Resize", x[0], "", scales, mode="linear")
    return net.node("QLinearLeakyRelu", y, *x[1:], *net.affine(*FINE), alpha=0.25, domain=MICROSOFT)


Case = tuple[Callable[[Integers], str], tuple[float, int], int]
"""What is computed, how it is stored, and by how many steps it may differ."""

IMAGE = (2, 16, 8, 8)
IMAGES: dict[str, Case] = {
    "QLinearConv": (convolution, OUT, 0),
    "QLinearAdd": (two("QLinearAdd"), OUT, 1),
    "QLinearMul": (two("QLinearMul"), OUT, 1),
    "QLinearConcat": (joined, OUT, 0),
    "QLinearSigmoid": (swish, OUT, 1),
    "QLinearLeakyRelu": (one("QLinearLeakyRelu", alpha=0.25), FINE, 0),
    "QLinearGlobalAveragePool": (one("QLinearGlobalAveragePool"), FINE, 1),
    "QLinearAveragePool": (one("QLinearAveragePool", kernel_shape=[2, 2]), FINE, 1),
    "moved": (moved, OUT, 0),
}
MATRIX = (5, 24)
MATRICES: dict[str, Case] = {
    "QLinearMatMul": (product, OUT, 0),
    "QGemm": (gemm, OUT, 0),
}


@pytest.mark.every(6)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("shape", [IMAGE, MATRIX])
def test_operators_on_integers_store_what_onnx_runtime_stores(shape: tuple[int, ...], signed: bool) -> None:
    cases = IMAGES if shape == IMAGE else MATRICES
    net = Integers(*shape)
    net.signed = signed
    model = net.finish(*(net.real(layers(net), out) for layers, out, _ in cases.values()))
    x = (net.random.standard_normal(shape) * 40).astype(np.float32)
    results = zip(cases.items(), compiled(model)(x), reference(model, x), strict=True)
    for (name, (_, out, steps)), found, wanted in results:
        assert len(np.unique(wanted)) > 1, name
        np.testing.assert_allclose(found, wanted, rtol=0, atol=steps * out[0], err_msg=name)
        assert np.mean(found != wanted) < 0.02, name


@pytest.mark.parametrize("channels", [40, 120])
def test_channels_that_fill_no_block_are_scaled_before_a_product(channels: int) -> None:
    """Squeeze and excitation: the scaled image is filled up with zeros where the product reads it."""
    net = Integers(1, channels, 6, 6)
    x, pooled, gate = net.operand("x", (0.37, 107)), net.affine(0.11, 120), net.affine(0.0019, 0)
    y = net.node("QLinearGlobalAveragePool", *x, *pooled, domain=MICROSOFT)
    y = net.node("QLinearConv", y, *pooled, *net.weights((channels, channels, 1, 1), channels), *net.affine(3.7, 120))
    y = net.node("QuantizeLinear", net.node("HardSigmoid", net.real(y, (3.7, 120))), *gate)
    scaled = net.affine(0.29, 107)
    y = net.node("QLinearMul", *x, y, *gate, *scaled, domain=MICROSOFT)
    values = net.tensor(net.random.integers(0, 256, (24, channels, 1, 1)).astype(np.uint8))
    weights = [values, net.tensor(np.float32(0.25)), net.tensor(np.uint8(132))]  # a channel more adds up the others
    y = net.node("QLinearConv", y, *scaled, *weights, *net.affine(11.0, 101))
    model = net.finish(net.real(y, (11.0, 101)))
    image = (net.random.standard_normal(net.shape) * 20).astype(np.float32)
    (found,), (wanted,) = compiled(model)(image), reference(model, image)
    assert len(np.unique(wanted)) > 20
    np.testing.assert_allclose(found, wanted, rtol=0, atol=11.0)
    assert np.mean(found != wanted) < 0.02


def softmax(net: Integers) -> str:
    x, y = net.operand("x", (1 / 16, 113)), net.affine(1 / 256, 0)
    return net.node("QLinearSoftmax", *x, *y, axis=-1, opset=17, domain=MICROSOFT)


def chosen(net: Integers) -> str:
    condition = net.tensor(net.random.integers(0, 2, net.shape).astype(np.bool_))
    operands = [*net.operand("x", IN), *net.operand("x", (1.0, 99))]
    return net.node("QLinearWhere", condition, *operands, *net.affine(*OUT), domain=MICROSOFT)


@pytest.mark.parametrize("layers", [softmax, chosen])
def test_what_has_no_integer_kernel_stores_what_onnx_runtime_stores_too(layers: Callable[[Integers], str]) -> None:
    net = Integers(*MATRIX)
    out = (1 / 256, 0) if layers is softmax else OUT
    model = net.finish(net.real(layers(net), out))
    x = (net.random.standard_normal(MATRIX) * 40).astype(np.float32)
    target = Target.from_tag(HERE)
    engine = load(build(model, target, OPTIONS).to_bytes(), target)
    (wanted,) = reference(model, x)
    assert len(np.unique(wanted)) > 1
    np.testing.assert_allclose(engine(x)[0], wanted, rtol=0, atol=out[0] if layers is softmax else 0)


def test_weights_of_four_bits_in_blocks_stay_so_in_the_library() -> None:
    net = Integers(5, 256)
    packed = net.tensor(net.random.integers(0, 256, (64, 4, 32)).astype(np.uint8))
    scales = net.tensor(net.random.uniform(0.01, 0.02, (64, 4)).astype(np.float32))
    attributes = {"K": 256, "N": 64, "bits": 4, "block_size": 64}
    model = net.finish(net.node("MatMulNBits", "x", packed, scales, domain=MICROSOFT, **attributes))
    x = net.random.standard_normal(net.shape).astype(np.float32)
    target = Target.from_tag(HERE)
    library = build(model, target, OPTIONS)
    (stored,) = library.metadata["weights"]
    assert (stored["dtype"], np.prod(stored["shape"])) == ("uint8", 64 * 256 // 2)
    assert_same_sums(load(library.to_bytes(), target)(x)[0], reference(model, x)[0], terms=256)


@pytest.mark.every(2)
@pytest.mark.parametrize("signed", [False, True])
def test_a_linear_resize_of_integers_drops_fractions(signed: bool) -> None:
    net = Integers(1, 3, 5, 6)
    net.signed = signed
    model = net.finish(net.real(resized(net), FINE))
    x = (net.random.standard_normal(net.shape) * 40).astype(np.float32)
    target = Target.from_tag(HERE)
    found = load(build(model, target, OPTIONS).to_bytes(), target)(x)[0]
    np.testing.assert_array_equal(found, reference(model, x)[0])


@pytest.mark.every(3)
@pytest.mark.parametrize("operator", ["DynamicQuantizeMatMul", "MatMulIntegerToFloat"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_with_a_float_result_agree_with_onnx_runtime(operator: str, has_bias: bool) -> None:
    """ONNX Runtime's own kernels saturate in pairs of products, but not by weights of seven bits."""
    net = Integers(*MATRIX)
    _, scale, zero = net.weights((24, 10), 10)
    weight = net.tensor(net.random.integers(-63, 64, (24, 10)).astype(np.int8))
    bias = net.tensor(net.random.standard_normal(10).astype(np.float32)) if has_bias else ""
    if operator == "DynamicQuantizeMatMul":
        inputs = ["x", weight, scale, zero, bias]
    else:
        x, x_scale, x_zero = net.operand("x", IN)
        inputs = [x, weight, x_scale, scale, x_zero, zero, bias]
    model = net.finish(net.node(operator, *inputs, domain=MICROSOFT))
    x = (net.random.standard_normal(MATRIX) * 40).astype(np.float32)
    assert_close(compiled(model)(x)[0], reference(model, x)[0], within=1e-5)


def test_a_mean_over_axes_is_written_as_onnx_has_it_since_operator_set_18() -> None:
    """ONNX Runtime has no kernel for it on CPUs, so its definition is the reference."""
    net = Integers(*IMAGE)
    y = net.node("QLinearReduceMean", *net.operand("x", IN), *net.affine(*FINE), axes=[2, 3], domain=MICROSOFT)
    model = net.finish(net.real(y, FINE))
    for opset in (17, 18):
        model.opset_import[0].version = opset
        x = (net.random.standard_normal(IMAGE) * 40).astype(np.float32)
        stored = np.clip(np.rint(x / np.float32(IN[0])) + IN[1], 0, 255)
        mean = ((stored - IN[1]) * IN[0]).mean(axis=(2, 3), keepdims=True)
        wanted = (np.clip(np.rint(mean / FINE[0]) + FINE[1], 0, 255) - FINE[1]) * FINE[0]
        np.testing.assert_allclose(reference(write_out(model), x)[0], wanted, rtol=0, atol=FINE[0])
        np.testing.assert_allclose(compiled(model)(x)[0], wanted, rtol=0, atol=FINE[0])


def test_a_model_with_nothing_to_write_out_is_not_copied() -> None:
    net = Net(5, 24)
    model = net.finish(net.node("MatMul", net.pair("x", IN), net.weight((24, 10), exact_scales(10), axis=1)))
    assert write_out(model) is model


@pytest.mark.parametrize(
    ("dtype", "zeros"), [(np.uint8, "none"), (np.uint8, "one for each column"), (np.int8, "one for each column")]
)
def test_products_of_integers_are_exact_sums_in_integers(dtype: Any, zeros: str) -> None:
    random: Any = np.random.default_rng(1)
    steps, columns = 2400, 12  # sums that a float32 does not hold
    info = np.iinfo(dtype)
    x = random.choice(np.array([info.max, info.max - 1, info.max - 2], dtype), (3, steps))
    weight = random.integers(50, 101, (steps, columns)).astype(np.int8)
    weight_zero = {
        "none": np.int8(0),
        "one for each column": random.integers(0, 27, columns).astype(np.int8),
    }[zeros]
    weight = weight + weight_zero
    zero = dtype(info.min + 3) if zeros != "none" else dtype(0)
    tensors = {"w": weight, "xz": zero, "wz": weight_zero}
    names = ["x", "w"] if zeros == "none" else ["x", "w", "xz", "wz"]
    model = of_integers("MatMulInteger", names, tensors, x)
    wanted = (x.astype(np.int64) - int(zero)) @ (weight.astype(np.int64) - weight_zero)
    assert abs(wanted).max() > 1 << 24
    np.testing.assert_array_equal(compiled(model)(x)[0], wanted.astype(np.int32))


@pytest.mark.every(10)
@pytest.mark.parametrize("measures", [False, True])
@pytest.mark.parametrize(
    ("groups", "size", "is_open"),
    [
        *((1, (7, 7), False), (16, (7, 7), False), (1, (19,), False), (16, (19,), False), (1, (4, 5, 6), False)),
        *((1, (7, 7), True), (16, (7, 7), True)),
    ],
)
def test_convolutions_of_integers_pad_with_the_zero_point(
    groups: int, size: tuple[int, ...], is_open: bool, measures: bool
) -> None:
    random: Any = np.random.default_rng(2)
    axes = len(size)
    x = random.integers(0, 256, (2, 16, *size)).astype(np.uint8)
    weight = random.integers(-127, 128, (16, 16 // groups, *[3] * axes)).astype(np.int8)
    attributes = {"pads": [1, 2, 0][:axes] + [1, 0, 2][:axes], "group": groups, "strides": [2, 1, 2][:axes]}
    model = of_integers("ConvInteger", ["x", "w", "xz"], {"w": weight, "xz": np.uint8(77)}, x, **attributes)
    if measures:  # the zero point is another input
        zero = helper.make_tensor_value_info("xz", TensorProto.UINT8, ())
        del model.graph.initializer[1:]
        model.graph.input.append(zero)
    for axis, name in enumerate(("n", "c", "h", "w")) if is_open else ():
        if name != "c":
            model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    exact = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    graph = helper.make_graph(
        [exact],
        "exact",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, a.shape) for name, a in (("x", x), ("w", weight))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    floats = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    feeds = {"x": x.astype(np.float32) - 77, "w": weight.astype(np.float32)}
    found = compiled(model)(*([x, np.array(77, np.uint8)] if measures else [x]))[0]
    np.testing.assert_array_equal(found, Interpreter(floats)(feeds)["y"].astype(np.int32))


def of_integers(operator: str, names: list[str], tensors: dict[str, Any], x: Any, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one node with an int32 result."""
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["y"], **attributes)],
        "net",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items() if name in names],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def measured(net: Integers, x: str) -> list[str]:
    names = [f"{x}_{part}" for part in ("q", "scale", "zero")]
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], names))
    return names


@pytest.mark.parametrize("nested", [False, True])
def test_a_scaled_product_of_measured_bytes_has_the_kernels_of_dynamic_quantization(nested: bool) -> None:
    net = Integers(5, 24)
    q, scale, zero = measured(net, "x")
    weight, weight_scale = (
        net.tensor(net.random.integers(-127, 128, (24, 10)).astype(np.int8)),
        net.tensor(np.float32(0.03)),
    )
    real = net.node("Cast", net.node("MatMulInteger", q, weight, zero), to=TensorProto.FLOAT)
    if nested:
        result = net.node("Mul", net.node("Mul", real, scale), weight_scale)
    else:
        result = net.node("Mul", real, net.node("Mul", scale, weight_scale))
    model = net.finish(net.node("Add", result, net.tensor(net.random.standard_normal(10).astype(np.float32))))
    assert "MatMulInteger" not in {node.op_type for node in write_out(model).graph.node}
    x = (net.random.standard_normal(net.shape) * 3).astype(np.float32)
    assert_close(compiled(model)(x)[0], reference(model, x)[0], within=1e-5)


@pytest.mark.every(2)
@pytest.mark.parametrize("read", ["sums", "real", "scaled", "another zero"])
def test_a_scaled_product_is_written_out_only_where_nobody_else_reads_what_is_inside(read: str) -> None:
    net = Integers(5, 24)
    q, scale, zero = measured(net, "x")
    weight = net.tensor(net.random.integers(-127, 128, (24, 10)).astype(np.int8))
    if read == "another zero":
        zero = net.tensor(np.uint8(100))
    sums = net.node("MatMulInteger", q, weight, zero)
    real = net.node("Cast", sums, to=TensorProto.FLOAT)
    scaled = net.node("Mul", real, scale)
    result = net.node("Mul", scaled, net.tensor(np.float32(0.03)))
    inside = {"sums": sums, "real": real, "scaled": scaled}.get(read)
    model = net.finish(result, *[inside] * (inside is not None))
    model.graph.output[-1].type.tensor_type.elem_type = TensorProto.INT32 if read == "sums" else TensorProto.FLOAT
    assert "MatMulInteger" in {node.op_type for node in write_out(model).graph.node}
    x = (net.random.standard_normal(net.shape) * 3).astype(np.float32)
    target = Target.from_tag(HERE)
    engine = load(build(model, target, OPTIONS).to_bytes(), target)
    for found, wanted in zip(engine(x), reference(model, x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
