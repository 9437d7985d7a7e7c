"""One library for any batch: every family of operators, at several sizes, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target
from forge_runtime.engine import Engine

TILED = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
SIZES = (1, 2, 5)
Branch = tuple[str, list[Any], dict[str, Any]]


def normal(*shape: int) -> np.ndarray:
    return (np.random.default_rng(sum(shape)).standard_normal(shape) / 4).astype(np.float32)


SAME = {"pads": [1] * 4}
FAMILIES: dict[str, tuple[list[int], dict[str, list[Branch]]]] = {
    "images": (
        [16, 12, 10],
        {
            "pointwise": [("Conv", [normal(24, 16, 1, 1), normal(24)], {}), ("Relu", [], {})],
            "strided": [("Conv", [normal(20, 16, 3, 3)], {**SAME, "strides": [2, 2]})],
            "winograd": [("Conv", [normal(32, 16, 3, 3)], SAME), ("Sigmoid", [], {})],
            "depthwise": [("Conv", [normal(16, 1, 3, 3)], {**SAME, "group": 16})],
            "grouped": [("Conv", [normal(16, 4, 3, 3)], {**SAME, "group": 4})],
            "transposed": [("ConvTranspose", [normal(16, 8, 3, 3)], {"strides": [2, 2]})],
            "normalized": [
                ("Conv", [normal(16, 16, 1, 1)], {}), ("InstanceNormalization", [normal(16), normal(16)], {}),
            ],
            "maximum": [("Conv", [normal(16, 16, 1, 1)], {}), ("MaxPool", [], {"kernel_shape": [2, 2]})],
            "average": [("AveragePool", [], {"kernel_shape": [3, 3], "pads": [1] * 4})],
            "whole": [("GlobalAveragePool", [], {}), ("Flatten", [], {}), ("Gemm", [normal(16, 7), normal(7)], {})],
            "resized": [
                ("Resize", [None, np.array([1, 1, 1.5, 0.7], np.float32)], {"mode": "linear"}),
                ("Conv", [normal(8, 16, 1, 1)], {}),
            ],
            "blocks": [("DepthToSpace", [], {"blocksize": 2, "mode": "CRD"}), ("SpaceToDepth", [], {"blocksize": 2})],
            "padded": [("Pad", [np.array([0, 0, 1, 2, 0, 0, 0, 1])], {"mode": "reflect"})],
            "sliced": [
                ("Slice", [np.array([2]), np.array([9]), np.array([1])], {}), ("Transpose", [], {"perm": [0, 2, 3, 1]}),
            ],
        },
    ),
    "rows": (
        [9, 32],
        {
            "product": [("MatMul", [normal(32, 40)], {}), ("Add", [normal(40)], {}), ("Gelu", [], {})],
            "softmax": [("Softmax", [], {"axis": -1})],
            "layer": [("LayerNormalization", [normal(32), normal(32)], {"axis": -1})],
            "mean": [("ReduceMean", [np.array([1])], {"keepdims": 0}), ("Tanh", [], {})],
            "summed": [("CumSum", [np.array(1)], {})],
            "largest": [("ArgMax", [], {"axis": 2, "keepdims": 0})],
            "moved": [("Transpose", [], {"perm": [0, 2, 1]}), ("Reshape", [np.array([0, 4, 8, 9])], {})],
            "flattened": [
                ("Reshape", [np.array([0, -1])], {}), ("MatMul", [normal(288, 5)], {}), ("LogSoftmax", [], {}),
            ],
            "gathered": [("Gather", [np.array([3, 0, 8])], {"axis": 1}), ("Expand", [np.array([1, 3, 32])], {})],
        },
    ),
    "sequences and volumes": (
        [4, 6, 6, 5],
        {
            "convolved": [("Conv", [normal(8, 4, 3, 3, 3)], {"pads": [1] * 6})],
            "pooled": [("MaxPool", [], {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]})],
            "averaged": [("AveragePool", [], {"kernel_shape": [2, 2, 2], "pads": [1] * 6})],
            "whole": [("GlobalMaxPool", [], {})],
            "sequence": [
                ("Reshape", [np.array([0, 4, 180])], {}), ("Conv", [normal(8, 4, 3)], {"strides": [2]}),
                ("AveragePool", [], {"kernel_shape": [3]}),
            ],
        },
    ),
}  # fmt: skip


def of_branches(shape: list[int], branches: dict[str, list[Branch]]) -> onnx.ModelProto:
    """Return a model with an output for each branch; the data come first among a node's inputs."""
    nodes, weights = [], []
    for name, steps in branches.items():
        previous = "x"
        for index, (operator, constants, attributes) in enumerate(steps):
            names = ["" if value is None else f"{name}_{index}_{at}" for at, value in enumerate(constants)]
            weights += [numpy_helper.from_array(v, n) for n, v in zip(names, constants, strict=True) if n]
            output = name if index == len(steps) - 1 else f"{name}_{index}"
            nodes.append(helper.make_node(operator, [previous, *names], [output], **attributes))
            previous = output
    results = [
        helper.make_tensor_value_info(name, TensorProto.INT64 if name == "largest" else TensorProto.FLOAT, None)
        for name in branches
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *shape])]
    graph = helper.make_graph(nodes, "graph", inputs, results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.every(9)
@pytest.mark.parametrize("name", FAMILIES)
def test_one_library_serves_any_batch(name: str) -> None:
    shape, branches = FAMILIES[name]
    model = of_branches(shape, branches)
    engine = Engine(build(model, Target.from_tag("host"), TILED).to_bytes(), threads=2)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for batch in SIZES:
        x = 4 * normal(batch, *shape)
        for branch, want, have in zip(branches, session.run(None, {"x": x}), engine(x), strict=True):
            assert have.shape == want.shape, branch
            assert np.abs(have - want).max() <= 5e-5 * max(np.abs(want).max(), 1), branch
