"""Layers that measure the scale of what they read when the model runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from tests.support.int8.net import Net

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "convolution": ((1, 16, 9, 9), (24, 16, 3, 3), {"pads": [1, 0, 2, 1]}),
    "convolution of three channels": ((2, 3, 12, 12), (8, 3, 3, 3), {"pads": [1] * 4, "strides": [2, 2]}),
    "depthwise": ((1, 16, 9, 9), (16, 1, 3, 3), {"pads": [1] * 4, "group": 16}),
    "product": ((3, 5, 24), (24, 17), {}),
}


def measured(net: Net, x: str) -> str:
    """Append DynamicQuantizeLinear and DequantizeLinear."""
    names = [f"{x}_{part}" for part in ("q", "scale", "zero")]
    net.nodes.append(onnx.helper.make_node("DynamicQuantizeLinear", [x], names))
    return net.node("DequantizeLinear", *names)


def layer(net: Net, x: str, case: str) -> str:
    _, shape, attributes = CASES[case]
    scale = (net.random.random(shape[-1] if len(shape) == 2 else shape[0]) / 100 + 0.001).astype(np.float32)
    weight = net.weight(shape, scale, axis=1 if len(shape) == 2 else 0)
    bias = net.tensor(net.random.standard_normal(scale.size).astype(np.float32))
    if len(shape) == 4:
        return net.node("Conv", x, weight, bias, **attributes)
    return net.node("Add", net.node("MatMul", x, weight), bias)
