"""A small real model with data, as files: a convolution with batch norm, a pooling and a dense layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def write_model(path: Path, *, seed: int = 0, prefix: str = "") -> Path:
    """Write a convolution with batch norm, a pooling and a dense layer: 1x3x12x12 to 5 logits."""
    rng = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.normal(scale=0.3, size=shape).astype(np.float32), prefix + name)

    norm = [
        numpy_helper.from_array(values.astype(np.float32), prefix + name)
        for name, values in {
            "gamma": rng.uniform(0.5, 1.5, 8),
            "beta": rng.normal(size=8),
            "mean": rng.normal(size=8),
            "var": rng.uniform(0.5, 1.5, 8),
        }.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", prefix + "w"], [prefix + "c"], pads=[1, 1, 1, 1], name=prefix + "conv"),
        helper.make_node("BatchNormalization", [prefix + "c", *(item.name for item in norm)], [prefix + "n"]),
        helper.make_node("Relu", [prefix + "n"], [prefix + "r"]),
        helper.make_node("GlobalAveragePool", [prefix + "r"], [prefix + "p"]),
        helper.make_node("Flatten", [prefix + "p"], [prefix + "f"]),
        helper.make_node("Gemm", [prefix + "f", prefix + "d"], ["logits"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 12, 12])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 5])],
        [weight("w", 8, 3, 3, 3), weight("d", 5, 8), *norm],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


def write_data(path: Path) -> Path:
    """Write 24 labelled samples for it."""
    rng = np.random.default_rng(7)
    np.savez(path, x=rng.normal(size=(24, 3, 12, 12)).astype(np.float32), y=rng.integers(0, 5, size=24))
    return path
