"""Convolutions and pooling on a GPU, of known and of open sizes: what ONNX Runtime computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.gpu.products import TILES, Work, parts_of, tile_of
from tests.support.cuda import Gpu

RANDOM = np.random.default_rng(0)
CONVOLUTIONS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "three": (16, 48, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "point": (16, 8, {"kernel_shape": [1, 1]}),
    "first": (3, 20, {"kernel_shape": [5, 3], "strides": [2, 1], "pads": [2, 0, 1, 1]}),
    "dilated": (16, 16, {"kernel_shape": [3, 3], "dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    "deep": (256, 24, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 1, 1, 0]}),
    "depthwise": (32, 32, {"kernel_shape": [3, 3], "group": 32, "pads": [1, 1, 1, 1]}),
    "grouped": (16, 24, {"kernel_shape": [3, 3], "group": 4}),
}
POOLS: dict[str, dict[str, Any]] = {
    "MaxPool": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    "AveragePool": {"kernel_shape": [2, 3], "pads": [0, 1, 0, 1]},
    "GlobalAveragePool": {},
}


def network(sizes: list[Any]) -> tuple[onnx.ModelProto, list[int]]:
    """Return a model of all of these, each with an input, and the inputs' channels; images are of ``sizes``."""
    nodes, constants, channels = [], [], []
    cases = [*CONVOLUTIONS.items(), *((kind, (12, 12, attributes)) for kind, attributes in POOLS.items())]
    for name, (taken, filters, attributes) in cases:
        channels.append(taken)
        kind, operands, result = (
            (name, [], name) if name in POOLS else ("Conv", [f"{name}_w", f"{name}_b"], f"{name}_c")
        )
        nodes.append(helper.make_node(kind, [f"x_{name}", *operands], [result], **attributes))
        if kind == "Conv":
            shape = (filters, taken // attributes.get("group", 1), *attributes["kernel_shape"])
            weight = RANDOM.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
            constants.append(numpy_helper.from_array(weight.astype(np.float32), operands[0]))
            constants.append(numpy_helper.from_array(RANDOM.standard_normal(filters).astype(np.float32), operands[1]))
            nodes.append(helper.make_node("Relu", [result], [name]))
    inputs = [
        helper.make_tensor_value_info(f"x_{name}", TensorProto.FLOAT, [sizes[0], taken, *sizes[1:]])
        for (name, _), taken in zip(cases, channels, strict=True)
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name, _ in cases]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model), channels


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([2, 9, 11], id="known", marks=pytest.mark.long),
        pytest.param(["batch", "height", "width"], id="open"),
    ],
)
def test_images_are_as_onnx_runtime_has_them(sizes: list[Any], gpu: Gpu, tmp_path: Path) -> None:
    model, channels = network(sizes)
    names = [port.name for port in model.graph.input]
    given = {
        name: RANDOM.standard_normal((2, taken, 9, 11)).astype(np.float32)
        for name, taken in zip(names, channels, strict=True)
    }
    given[names[0]][0, 0, 0, 0] = np.inf  # at an edge: what is read beyond it counts as zero
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    for output, want, have in zip(model.graph.output, wanted, gpu.results(model, given, tmp_path), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5, err_msg=output.name)


def test_taps_are_parted_where_there_are_few_pixels() -> None:
    """512 filters of 49 pixels are 32 tiles of the least size: too few for large GPUs, less so for Jetson."""
    late = Work(batch=1, rows=512, columns=49, terms=4608)
    assert [parts_of(late, tile_of(late, processors), processors) for processors in (16, 96)] == [3, 18]
    early = Work(batch=1, rows=64, columns=12544, terms=147)
    assert parts_of(early, tile_of(early, 96), 96) == 1
    assert tile_of(Work(batch=1, rows=256, columns=12544, terms=64), 96) == TILES[0]
    assert tile_of(Work(batch=1, rows=64, columns=196, terms=64), 96) == TILES[-2]
