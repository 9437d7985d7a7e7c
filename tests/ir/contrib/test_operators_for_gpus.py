"""Operators of com.microsoft that optimizers write for GPUs, and ONNX Runtime has no kernel for on a CPU.

Each is compared with what it was fused from.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from forge_pipeline.ir.canonical import canonical_model
from forge_pipeline.ir.qdq.to_standard import in_standard
from forge_pipeline.ir.reference.interpreter import Interpreter
from tests.support.microsoft import own, with_open_sizes
from tests.support.sums import assert_close


def floats(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def gelu(x: str, y: str) -> onnx.NodeProto:
    return own("Gelu", [x], [y])


def standard(operator: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), [output], **attributes)


FOR_GPUS: dict[str, tuple[onnx.NodeProto, list[onnx.NodeProto], dict[str, tuple[int, ...]]]] = {
    "BiasAdd": (
        own("BiasAdd", ["x", "b", "z"], ["y"]),
        [standard("Add", "x b", "s"), standard("Add", "s z", "y")],
        {"x": (2, 5, 8), "b": (8,), "z": (2, 5, 8)},
    ),
    "BiasDropout": (
        own("BiasDropout", ["x", "b", "z"], ["y"]),
        [standard("Add", "x b", "s"), standard("Add", "s z", "y")],
        {"x": (2, 5, 8), "b": (8,), "z": (2, 5, 8)},
    ),
    "BiasSoftmax": (
        own("BiasSoftmax", ["x", "b"], ["y"], axis=3, is_inner_broadcast=0),
        [standard("Add", "x b", "s"), standard("Softmax", "s", "y")],
        {"x": (2, 3, 4, 5), "b": (2, 1, 1, 5)},
    ),
    "BiasSplitGelu": (
        own("BiasSplitGelu", ["x", "b"], ["y"]),
        [
            standard("Add", "x b", "s"),
            helper.make_node("Split", ["s"], ["l", "r"], axis=-1, num_outputs=2),
            gelu("r", "g"),
            standard("Mul", "l g", "y"),
        ],
        {"x": (2, 5, 8), "b": (8,)},
    ),
    "GemmFastGelu": (
        own("GemmFastGelu", ["x", "w", "b"], ["y"]),
        [standard("MatMul", "x w", "p"), own("FastGelu", ["p", "b"], ["y"])],
        {"x": (5, 8), "w": (8, 4), "b": (4,)},
    ),
    "GroupNorm": (
        own("GroupNorm", ["x", "b", "c"], ["y"], groups=2, activation=1),
        [
            standard("Transpose", "x", "t", perm=[0, 3, 1, 2]),
            standard("Shape", "t", "shape"),
            standard("Reshape", "t parts", "p"),
            standard("InstanceNormalization", "p ones zeros", "i"),
            standard("Reshape", "i shape", "r"),
            standard("Transpose", "r", "l", perm=[0, 2, 3, 1]),
            standard("Mul", "l b", "m"),
            standard("Add", "m c", "a"),
            standard("Sigmoid", "a", "g"),
            standard("Mul", "a g", "y"),
        ],
        {"x": (2, 4, 5, 8), "b": (8,), "c": (8,)},
    ),
    "NhwcConv": (
        own("NhwcConv", ["x", "f", "b"], ["y"], pads=[1] * 4, kernel_shape=[3, 3]),
        [
            standard("Transpose", "x", "t", perm=[0, 3, 1, 2]),
            standard("Transpose", "f", "u", perm=[0, 3, 1, 2]),
            standard("Conv", "t u b", "k", pads=[1] * 4),
            standard("Transpose", "k", "y", perm=[0, 2, 3, 1]),
        ],
        {"x": (2, 4, 5, 6), "f": (8, 3, 3, 6), "b": (8,)},
    ),
    "NhwcFusedConv": (
        own("NhwcFusedConv", ["x", "f", "b", "z"], ["y"], activation="Relu", pads=[1] * 4),
        [
            standard("Transpose", "x", "t", perm=[0, 3, 1, 2]),
            standard("Conv", "t f b", "k", pads=[1] * 4),
            standard("Transpose", "k", "l", perm=[0, 2, 3, 1]),
            standard("Add", "l z", "s"),
            standard("Relu", "s", "y"),
        ],
        {"x": (2, 4, 5, 3), "f": (8, 3, 3, 3), "b": (8,), "z": (2, 4, 5, 8)},
    ),
    "SkipGroupNorm": (
        own("SkipGroupNorm", ["x", "b", "c", "k"], ["y"], groups=2, activation=0),
        [
            standard("Unsqueeze", "k axes", "u"),
            standard("Add", "x u", "s"),
            own("GroupNorm", ["s", "b", "c"], ["y"], groups=2, activation=0),
        ],
        {"x": (2, 4, 5, 8), "b": (8,), "c": (8,), "k": (2, 8)},
    ),
}
"""Operators, what they were fused from, and shapes of operands."""


@pytest.mark.parametrize("operator", FOR_GPUS)
def test_an_operator_is_what_it_was_fused_from(operator: str) -> None:
    node, nodes, shapes = FOR_GPUS[operator]
    feeds = {name: floats(len(name) + place, *shape) for place, (name, shape) in enumerate(shapes.items())}
    constants = {
        "parts": np.array([0, 2, -1]), "ones": np.ones(2, np.float32), "zeros": np.zeros(2, np.float32),
        "axes": np.array([1, 2]),
    }  # fmt: skip
    one, other = (with_open_sizes(given, [feeds], constants, ["y"], opset=18) for given in ([node], nodes))
    found, wanted = (Interpreter(canonical_model(in_standard(net)))(feeds)["y"] for net in (one, other))
    assert_close(found, wanted, within=1e-5)
