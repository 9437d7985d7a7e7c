"""Functions of one quantized value: tables worked out when the model is built, against ONNX Runtime, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from forge_pipeline.codegen.int8.ops import lookup_table
from tests.support.int8.compare import check, compiled, reference
from tests.support.int8.net import IN, OUT, Net, convolution

Chain = Callable[[Net, str], str]


def swish(net: Net, x: str) -> str:
    return net.node("Mul", x, net.node("Sigmoid", x))


def swish_with_a_quantized_gate(net: Net, x: str) -> str:
    return net.node("Mul", x, net.pair(net.node("Sigmoid", x), (1 / 256, 0)))


def gelu(net: Net, x: str) -> str:
    inner = net.node("Erf", net.node("Div", x, net.tensor(np.float32(2**0.5))))
    return net.node(
        "Mul", net.node("Mul", x, net.node("Add", inner, net.tensor(np.float32(1)))), net.tensor(np.float32(0.5))
    )


def step(net: Net, x: str) -> str:
    above = net.node("Greater", x, net.tensor(np.float32(0.3)))
    return net.node("Where", above, x, net.node("Mul", x, net.tensor(np.float32(0.25))))


def of(operator: str, **attributes: Any) -> Chain:
    return lambda net, x: net.node(operator, x, **attributes)


CHAINS: dict[str, Chain] = {
    **{
        operator: of(operator)
        for operator in ("Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Elu", "Exp", "Abs", "Erf", "Softplus", "Neg")
    },
    "LeakyRelu": of("LeakyRelu", alpha=0.1),
    "swish": swish,
    "swish, gate quantized": swish_with_a_quantized_gate,
    "gelu": gelu,
    "step": step,
    "another scale": lambda net, x: x,
}


@pytest.mark.every(4)
@pytest.mark.parametrize("arch", ["this", "riscv64"])
def test_functions_of_a_byte_store_what_onnx_runtime_stores(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if arch != "this":  # no table instruction is known: one byte after the other
        monkeypatch.setattr(lookup_table, "LOOKUPS", {})
    net = Net(1, 8, 16, 17)
    x = net.pair("x", (0.0371, 113))
    check(net, *(net.pair(chain(net, x), (0.0213, 91)) for chain in CHAINS.values()), spread=3.0)


def test_a_table_follows_a_convolution_of_channels_that_fill_no_vector() -> None:
    net = Net(1, 5, 7, 7)
    y = net.pair(convolution(net, 5, 13, 3), OUT)
    check(net, net.pair(net.node("LeakyRelu", y, alpha=0.2), (16.0, 30)))


def test_functions_of_two_bytes_are_no_table() -> None:
    net = Net(1, 4, 4, 4)
    x, other = net.pair("x", IN), net.pair(net.node("Transpose", "x", perm=[0, 1, 3, 2]), IN)
    model = net.finish(net.node("Mul", x, net.node("Sigmoid", other)))
    values = (net.random.standard_normal(net.shape) * 3).astype(np.float32)
    found = compiled(model, in_float="")(values)[0]
    np.testing.assert_allclose(found, reference(model, values, optimized=False)[0], rtol=1e-5)


PAIRS = {
    "sum": ("Add", (1, 16, 5, 5)),
    "difference": ("Sub", (1, 16, 5, 5)),
    "product": ("Mul", (1, 16, 5, 5)),
    "product by one number for each channel": ("Mul", (1, 16, 1, 1)),
    "product by a row": ("Mul", (5,)),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("case", PAIRS)
def test_two_operands_of_any_scales_store_what_onnx_runtime_stores_a_sum_within_a_step(case: str) -> None:
    operator, shape = PAIRS[case]
    net = Net(1, 16, 5, 5)
    x = net.pair("x", (0.0371, 113))
    if shape == (1, 16, 1, 1):
        other = net.pair(net.node("GlobalAveragePool", x), (0.0625, 99))
    elif len(shape) == 1:
        other = net.pair(net.node("ReduceMax", "x", axes=[0, 1, 2], keepdims=0), (0.0532, 7))
    else:
        other = net.pair(net.node("Transpose", "x", perm=[0, 1, 3, 2]), (0.0532, 99))
    fixed = net.tensor(net.random.standard_normal((16, 1, 1)).astype(np.float32))
    results = [net.pair(net.node(operator, x, second), (0.0829, 101)) for second in (other, fixed)]
    model = net.finish(*results)
    values = (net.random.standard_normal(net.shape) * 3).astype(np.float32)
    engine = compiled(model, in_float="" if len(shape) == 1 else None)
    for found, wanted in zip(engine(values), reference(model, values, optimized=False), strict=True):
        steps = np.abs(found - wanted) / np.float32(0.0829)
        assert steps.max() == 0 if operator == "Mul" else steps.max() < 1.01
        assert (steps > 0.5).mean() < 0.01


@pytest.mark.every(2)
@pytest.mark.parametrize("channels", [16, 12])
def test_values_of_several_scales_are_concatenated_as_integers_of_one(channels: int) -> None:
    net = Net(1, 16, 5, 5)
    parts = [net.pair(convolution(net, 16, channels, 1), affine) for affine in (OUT, (77.7, 99), (31.3, 128))]
    parts[1] = net.node("LeakyRelu", parts[1], alpha=0.3)
    joined = net.node("Concat", *parts, axis=1)
    check(net, net.pair(joined, (53.3, 101)), net.pair(net.node("Relu", net.node("Concat", *parts, axis=3)), (53.3, 3)))


def test_padding_resizing_and_splitting_move_integers() -> None:
    net = Net(1, 16, 6, 5)
    x = net.pair("x", IN)
    pads = net.tensor(np.array([0, 0, 1, 2, 0, 0, 0, 3]))
    padded = [net.node("Pad", x, pads, net.tensor(np.float32(value))) for value in (0, 7.5)]
    scales = net.tensor(np.array([1, 1, 2, 3], np.float32))
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    larger = net.node("Resize", x, "", scales, **how)
    net.nodes.append(onnx.helper.make_node("Split", [x], ["left", "right"], axis=1))
    halves = [net.node("MaxPool", half, kernel_shape=[2, 2]) for half in ("left", "right")]
    check(net, *(net.pair(y, IN) for y in (*padded, larger, *halves)))
