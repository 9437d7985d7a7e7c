"""A small network that has a batch normalisation, a pool and two outputs; and TVM's own module of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

GRAPH = """
<ir_version: 10, opset_import: ["": 18]>
net (float[N, 3, 8, 8] x) => (float[N, 5] scores, float[N, 64] features)
{
    c = Conv<pads=[1, 1, 1, 1]>(x, k)
    n = BatchNormalization(c, gamma, beta, mean, variance)
    r = Relu(n)
    p = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(r)
    features = Flatten(p)
    scores = Gemm(features, w, b)
}
"""
SHAPES = {"k": (4, 3, 3, 3), "gamma": (4,), "beta": (4,), "mean": (4,), "w": (64, 5), "b": (5,)}


def _network(*, seed: int = 0) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    model = parser.parse_model(GRAPH)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    arrays["variance"] = rng.uniform(0.5, 2, 4).astype(np.float32)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    onnx.checker.check_model(model, full_check=True)
    return model


def _raw(model: onnx.ModelProto, **options: Any) -> Any:
    """Return TVM's own module of a model: nothing of ONNX is left behind it."""
    from forge_pipeline.ffi import torch_hidden

    with torch_hidden():
        from tvm.relax.frontend.onnx import from_onnx
    return from_onnx(model, **options)


@pytest.fixture
def model() -> onnx.ModelProto:
    return _network()


@pytest.fixture(scope="session")
def images() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="session")
def expected(images: np.ndarray) -> list[np.ndarray]:
    from forge_pipeline import ONNXModule

    found: list[np.ndarray] = ONNXModule(_network()).get_inference_function()(images)
    return found


@pytest.fixture
def network() -> Callable[..., onnx.ModelProto]:
    return _network


@pytest.fixture
def raw() -> Callable[..., Any]:
    return _raw
