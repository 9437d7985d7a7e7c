"""Transposed convolution, and convolution over one and three axes: any stride, padding, dilation and group."""

from __future__ import annotations

from dataclasses import replace
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
Case = tuple[str, tuple[int | str, ...], tuple[int, ...], dict[str, Any]]

CASES: dict[str, Case] = {
    "phases that read the same pixels": ("ConvTranspose", (1, 24, 9, 7), (24, 20, 2, 2), {"strides": [2, 2]}),
    "phases of several kernels": (
        "ConvTranspose", (2, 16, 7, 9), (16, 24, 3, 3),
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
    ),
    "an even kernel": ("ConvTranspose", (1, 32, 8, 8), (32, 16, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "stride, dilation and lopsided padding": (
        "ConvTranspose", (1, 8, 7, 9), (8, 12, 3, 4), {"strides": [3, 2], "dilations": [2, 3], "pads": [0, 2, 1, 0]},
    ),
    "phases without taps": ("ConvTranspose", (1, 8, 6, 5), (8, 9, 1, 1), {"strides": [2, 3]}),
    "stride 1": ("ConvTranspose", (1, 16, 9, 9), (16, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
    "groups": ("ConvTranspose", (1, 12, 6, 6), (12, 4, 3, 3), {"strides": [2, 2], "group": 3}),
    "a filter for each channel": (
        "ConvTranspose", (1, 20, 6, 6), (20, 1, 4, 4), {"strides": [2, 2], "group": 20, "pads": [1, 1, 1, 1]},
    ),
    "few channels": ("ConvTranspose", (1, 3, 6, 6), (3, 2, 3, 3), {"strides": [2, 2]}),
    "a symbolic batch, transposed": ("ConvTranspose", ("N", 16, 5, 5), (16, 8, 2, 2), {"strides": [2, 2]}),
    "one axis, transposed": (
        "ConvTranspose", (2, 16, 20), (16, 9, 5), {"strides": [3], "pads": [2, 1], "output_padding": [1]},
    ),
    "more phases than are written out, of which some read more": (
        "ConvTranspose", ("N", 8, 2000), (8, 3, 80), {"strides": [64]},
    ),
    "three axes, transposed": (
        "ConvTranspose", (1, 16, 3, 4, 5), (16, 8, 3, 3, 2), {"strides": [2, 2, 2], "pads": [1, 0, 0, 1, 0, 0]},
    ),
    "three axes": ("Conv", (2, 16, 5, 8, 9), (24, 16, 3, 3, 3), {"pads": [1] * 6}),
    "three axes with stride and dilation": (
        "Conv", (1, 20, 7, 9, 8), (10, 20, 2, 3, 3), {"strides": [2, 1, 2], "dilations": [2, 1, 1],
        "pads": [1, 0, 1, 2, 1, 0]},
    ),
    "a first convolution over three axes": ("Conv", (1, 3, 6, 12, 12), (16, 3, 3, 5, 5), {"strides": [1, 2, 2]}),
    "groups over three axes": ("Conv", (1, 8, 4, 6, 6), (16, 4, 3, 3, 3), {"group": 2}),
    "three axes of a symbolic batch": ("Conv", ("N", 16, 4, 6, 6), (16, 16, 3, 3, 3), {"pads": [1] * 6}),
    "two axes": ("Conv", ("N", 20, 11, 9), (24, 5, 3, 3), {"group": 4, "strides": [2, 1], "pads": [1, 0, 1, 2]}),
    "one axis": ("Conv", ("N", 20, 50), (33, 20, 3), {"strides": [2], "pads": [2, 1], "dilations": [2]}),
    "one axis, a filter for each channel": ("Conv", (1, 24, 40), (24, 1, 5), {"group": 24, "pads": [2, 2]}),
}  # fmt: skip

VOLUMES: dict[str, Case] = {
    "images of an open size": (
        "Conv", ("N", 16, 8, "H", "W"), (24, 16, 3, 3, 3), {"pads": [1] * 6, "strides": [2, 2, 1]},
    ),
    "an open depth": ("Conv", ("N", 9, "D", 6, 7), (8, 9, 3, 3, 3), {"pads": [1] * 6, "dilations": [2, 1, 1]}),
    "all three": (
        "Conv", ("N", 3, "D", "H", "W"), (16, 3, 2, 5, 5), {"pads": [0, 2, 2, 2, 2, 2], "strides": [2, 2, 2]},
    ),
    "no extent that is computed from others, but for the number of images": (
        "Conv", ("N", 16, 6, 7, "W"), (32, 16, 1, 2, 3), {"pads": [0, 0, 1, 0, 0, 1], "strides": [2, 2, 1]},
    ),
    "one filter for each channel": ("Conv", ("N", 16, "D", "H", "W"), (16, 1, 3, 3, 3), {"group": 16}),
    "images of an open size, transposed": (
        "ConvTranspose", ("N", 16, 4, "H", "W"), (16, 8, 3, 3, 3),
        {"strides": [2, 2, 2], "pads": [1] * 6, "output_padding": [1] * 3},
    ),
    "all three, transposed": ("ConvTranspose", ("N", 8, "D", "H", "W"), (8, 8, 2, 4, 2), {"strides": [2, 4, 2]}),
}  # fmt: skip
SIZES = ({"N": 1, "D": 5, "H": 8, "W": 9}, {"N": 3, "D": 8, "H": 13, "W": 6})


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def model_of(case: Case) -> onnx.ModelProto:
    """Return the convolution with a bias, a batch normalization and a Relu behind it."""
    operator, shape, kernel, attributes = case
    filters = kernel[0] if operator == "Conv" else kernel[1] * attributes.get("group", 1)
    weights = {"w": normal(*kernel), "b": normal(filters), **{k: np.abs(normal(filters)) + 0.5 for k in ("g", "v")}}
    weights |= {"s": normal(filters), "m": normal(filters)}
    nodes = [
        helper.make_node(operator, ["x", "w", "b"], ["c"], **attributes),
        helper.make_node("BatchNormalization", ["c", "g", "s", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), ("y", None))]
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.every(10)
@pytest.mark.parametrize("name", CASES)
def test_a_convolution_of_any_kind_is_right_and_has_no_generic_kernel(name: str) -> None:
    expect_right(name, "host", TILED)


@pytest.mark.every(6)
@pytest.mark.parametrize("name", VOLUMES)
def test_volumes_of_open_sizes_have_no_generic_kernel(name: str) -> None:
    expect_right(name, "host", TILED)


@pytest.mark.parametrize("tag", ["x86-64/v2"])
@pytest.mark.parametrize("name", ["phases of several kernels", "three axes with stride and dilation"])
def test_narrower_vectors_compute_the_same(tag: str, name: str) -> None:
    expect_right(name, tag, TILED)


@pytest.mark.every(6)
@pytest.mark.parametrize(
    "name", ["phases of several kernels", "stride, dilation and lopsided padding", "groups", "three axes", "two axes"]
)
def test_channels_may_be_the_last_axis(name: str) -> None:
    expect_right(name, "host", replace(TILED, channel_layout="last"))


def expect_right(name: str, tag: str, options: Options) -> None:
    case = (CASES | VOLUMES)[name]
    model = model_of(case)
    library = build(model, Target.from_tag(tag), options)
    assert library.metadata["compile"]["fallbacks"] == []
    session = onnxruntime.InferenceSession(model.SerializeToString())
    engine = Engine(library.to_bytes(), threads=2)
    for size in SIZES if any(isinstance(extent, str) for extent in case[1]) else SIZES[:1]:
        x = normal(*(size[extent] if isinstance(extent, str) else extent for extent in case[1]))
        (expected,), (found,) = session.run(None, {"x": x}), engine(x)
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= 5e-5 * np.abs(expected).max()
