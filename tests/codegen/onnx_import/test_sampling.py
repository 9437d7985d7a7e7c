"""GridSample, DeformConv and RoiAlign read between pixels what ONNX Runtime reads, of extents known and unknown."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import CompileError
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.sums import assert_close

OPTIONS = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
MODES = [*product(("linear", "cubic", "nearest"), ("zeros", "border", "reflection"), (0, 1))]
OPEN = {"x": ("n", 3, "h", "w"), "at": ("n", "rows", "columns", 2)}


def check(
    node: onnx.NodeProto,
    feeds: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, Any] | None = None,
) -> None:
    """Compile ``node``, and compare what it computes with ONNX Runtime."""
    model = model_of(node, feeds, weights or {}, shapes or {})
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, dict(feeds))
    found = computed(model, feeds)
    assert found.shape == expected.shape
    assert_close(found, expected, within=1e-5)


def computed(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    (found,) = Engine(build(model, Target.from_tag("host"), OPTIONS).to_bytes())(**feeds)
    return np.asarray(found)


def model_of(
    node: onnx.NodeProto, feeds: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray], shapes: Mapping[str, Any]
) -> onnx.ModelProto:
    ports = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), shapes.get(name, value.shape))
        for name, value in feeds.items()
    ]
    known = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "sampling", ports, made, known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def numbers(*shape: int, most: float = 1.0) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(-most, most, shape).astype(np.float32)


@pytest.mark.every(4)
@pytest.mark.parametrize("is_open", [False, True], ids=["known", "open"])
@pytest.mark.parametrize(("mode", "padding", "aligned"), MODES)
def test_a_grid_reads_what_onnx_runtime_reads(mode: str, padding: str, aligned: int, is_open: bool) -> None:
    node = helper.make_node("GridSample", ["x", "at"], ["y"], mode=mode, padding_mode=padding, align_corners=aligned)
    feeds = {"x": numbers(2, 3, 7, 9), "at": numbers(2, 5, 31, 2, most=1.6)}  # more than a tile of places, and outside
    check(node, feeds, shapes=OPEN if is_open else None)


def test_a_volume_is_read_between_its_voxels() -> None:
    check(
        helper.make_node("GridSample", ["x", "at"], ["y"]), {"x": numbers(1, 2, 4, 5, 6), "at": numbers(1, 3, 4, 5, 3)}
    )


@pytest.mark.parametrize("far", [np.float32(1e30), np.float32(-1e30)])
def test_what_lies_far_outside_counts_nothing_whatever_the_image_has(far: np.float32) -> None:
    node = helper.make_node("GridSample", ["x", "at"], ["y"])
    feeds = {"x": np.full((1, 1, 4, 4), np.inf, np.float32), "at": np.full((1, 3, 3, 2), far, np.float32)}
    assert not computed(model_of(node, feeds, {}, {}), feeds).any()


@pytest.mark.parametrize(
    ("groups", "parts", "is_masked", "is_open"), [(1, 1, False, False), (2, 2, True, False), (1, 4, True, True)]
)
def test_a_deformed_convolution_is_that_of_onnx_runtime(
    groups: int, parts: int, is_masked: bool, is_open: bool
) -> None:
    names = ["x", "w", "offset", "b", *(["mask"] if is_masked else [])]
    node = helper.make_node(
        "DeformConv", names, ["y"], strides=[2, 2], pads=[1] * 4, kernel_shape=[3, 3], group=groups, offset_group=parts
    )
    feeds = {"x": numbers(2, 8, 9, 11), "offset": numbers(2, parts * 18, 5, 6, most=3)}
    if is_masked:
        feeds["mask"] = numbers(2, parts * 9, 5, 6)
    weights = {"w": numbers(6, 8 // groups, 3, 3), "b": numbers(6)}
    shapes = {name: ("n", value.shape[1], f"h{name}", f"w{name}") for name, value in feeds.items()}
    check(node, feeds, weights, shapes if is_open else None)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize(("ratio", "is_half", "is_open"), [(0, True, True), (2, False, False), (9, True, False)])
def test_a_region_is_read_as_onnx_runtime_reads_it(mode: str, ratio: int, is_half: bool, is_open: bool) -> None:
    node = helper.make_node(
        "RoiAlign", ["x", "boxes", "images"], ["y"], mode=mode, output_height=3, output_width=2, sampling_ratio=ratio,
        spatial_scale=0.5, coordinate_transformation_mode="half_pixel" if is_half else "output_half_pixel",
    )  # fmt: skip
    least = numbers(5, 2, most=15)
    boxes = np.concatenate([least, least + np.abs(numbers(5, 3, most=50)[:, :2])], axis=1)  # some reach outside
    feeds = {"x": numbers(2, 3, 11, 13), "boxes": boxes, "images": np.array([0, 1, 1, 0, 1])}
    shapes = {"x": ("n", 3, "h", "w"), "boxes": ("regions", 4), "images": ("regions",)}
    check(node, feeds, shapes=shapes if is_open else None)


@pytest.mark.parametrize("is_open", [False, True], ids=["known", "open"])
@pytest.mark.parametrize(
    "how",
    [{"strides": [2, 3]}, {"strides": [2, 3], "pads": [1, 0, 1, 2]}, {}, {"strides": [2, 3], "dilations": [2, 1]}],
    ids=["apart", "padded", "overlapping", "dilated"],
)
@pytest.mark.parametrize("size", [(8, 9), (9, 11), (24, 30)], ids=str)
def test_blocks_are_put_back_where_onnx_runtime_puts_them(size: tuple[int, int], how: Any, *, is_open: bool) -> None:
    """Some pixels at the ends belong to no block, where steps do not divide an image."""
    pads, strides, dilations = (how.get(name, default) for name, default in
                                (("pads", [0] * 4), ("strides", [1, 1]), ("dilations", [1, 1])))  # fmt: skip
    counts = [
        (size[axis] + pads[axis] + pads[2 + axis] - dilations[axis] * ((2, 3)[axis] - 1) - 1) // strides[axis] + 1
        for axis in range(2)
    ]
    node = helper.make_node("Col2Im", ["x", "size", "block"], ["y"], **how)
    x = numbers(2, 5 * 6, counts[0] * counts[1])
    weights = {"size": np.int64(size), "block": np.int64([2, 3])}
    if not is_open:
        check(node, {"x": x}, weights)
        return
    like = numbers(1, 1, *size)
    model = model_of(
        node, {"x": x, "like": like}, {"block": weights["block"]}, {"x": ("n", 30, "l"), "like": ("m", 1, "h", "w")}
    )
    model.graph.node.insert(0, helper.make_node("Shape", ["like"], ["size"], start=2))
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x, "like": like})
    assert_close(computed(model, {"x": x, "like": like}), expected, within=1e-5)


def test_an_image_of_bool_is_refused_by_its_node() -> None:
    ports = [
        helper.make_tensor_value_info("x", TensorProto.BOOL, [1, 1, 4, 4]),
        helper.make_tensor_value_info("grid", TensorProto.FLOAT, [1, 2, 2, 2]),
    ]
    made = helper.make_tensor_value_info("y", TensorProto.BOOL, [1, 1, 2, 2])
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], mode="nearest")
    model = helper.make_model(helper.make_graph([node], "graph", ports, [made]), ir_version=10)
    with pytest.raises(CompileError, match="an image of bool"):
        build(model, Target.from_tag("host"), OPTIONS)
