"""A small network with every pattern that quantization treats specially, and samples for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper, parser

from forge_pipeline.ir import ONNXModule

GRAPH = """
<ir_version: 10, opset_import: ["": 17]>
net (float[N, 3, 8, 8] image) => (float[N, 10] scores)
{
    stem = Conv<pads=[1, 1, 1, 1]>(image, w0, b0)
    stem_relu = Relu(stem)
    depth = Conv<group=8, pads=[1, 1, 1, 1]>(stem_relu, w1, b1)
    six = Constant<value_float=6.0>()
    zero = Constant<value_float=0.0>()
    depth_relu = Clip(depth, zero, six)
    point = Conv(depth_relu, w2, b2)
    sum = Add(point, stem_relu)
    sum_relu = Relu(sum)
    left = Conv(sum_relu, w3)
    right = Conv<pads=[1, 1, 1, 1]>(sum_relu, w4)
    both = Concat<axis=1>(left, right)
    pooled = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(both)
    mean = GlobalAveragePool(pooled)
    flat = Flatten(mean)
    scores = Gemm<alpha=0.5, beta=2.0>(flat, w5, b5)
}
"""
SHAPES = {
    "w0": (8, 3, 3, 3), "b0": (8,), "w1": (8, 1, 3, 3), "b1": (8,), "w2": (8, 8, 1, 1), "b2": (8,),
    "w3": (6, 8, 1, 1), "w4": (6, 8, 3, 3), "w5": (12, 10), "b5": (10,),
}  # fmt: skip


def parsed(text: str, weights: dict[str, NDArray[Any]]) -> ONNXModule:
    model = parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{index}"
    onnx.checker.check_model(model, full_check=True)
    return ONNXModule(model)


@pytest.fixture
def parse() -> Callable[[str, dict[str, NDArray[Any]]], ONNXModule]:
    return parsed


@pytest.fixture(scope="session")
def net() -> ONNXModule:
    draw = np.random.default_rng(7)
    weights = {name: draw.normal(size=shape).astype(np.float32) * 0.4 for name, shape in SHAPES.items()}
    return parsed(GRAPH, weights)


@pytest.fixture(scope="session")
def feeds() -> list[dict[str, NDArray[Any]]]:
    draw = np.random.default_rng(8)
    return [{"image": draw.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(24)]
