"""Resize: every mode gives what ONNX Runtime gives, of extents known and unknown; the rest is refused in words."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
from forge_pipeline.codegen.onnx_import.resize_table import Axis, Interpolation, coordinates, taps
from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import CompileError
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.sums import assert_close

FLOAT = TensorProto.FLOAT
TILED = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
TRANSFORMATIONS = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
ROI = np.array([0, 0, 0.2, 0.1, 1, 1, 0.8, 1.3], np.float32)
CORNERS = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
Make = Callable[..., onnx.ModelProto]


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def factors(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def onnx_runtime(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    (found,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    return np.asarray(found)


def compiled(model: onnx.ModelProto, options: Options) -> Engine:
    library = build(model, Target.from_tag("host"), options)
    if options is TILED:
        assert library.metadata["compile"]["fallbacks"] == []
    return Engine(library.to_bytes(), threads=1)


rules = st.one_of(
    st.fixed_dictionaries({"mode": st.just("nearest"), "nearest_mode": st.sampled_from(ROUNDINGS)}),
    st.fixed_dictionaries({"mode": st.just("linear"), "antialias": st.integers(0, 1)}),
    st.fixed_dictionaries(
        {
            "mode": st.just("cubic"),
            "antialias": st.integers(0, 1),
            "exclude_outside": st.integers(0, 1),
            "cubic_coeff_a": st.sampled_from([-0.75, -0.5]),
        }
    ),
)


@settings(max_examples=150)
@given(
    size=st.integers(1, 12),
    target=st.one_of(st.integers(1, 20), st.sampled_from([0.3, 0.5, 0.6, 0.8, 1.5, 2.0, 2.3, 3.0])),
    transformation=st.sampled_from(TRANSFORMATIONS),
    rule=rules,
)
def test_the_table_of_an_axis_says_what_onnx_runtime_computes(
    size: int, target: int | float, transformation: str, rule: dict[str, Any]
) -> None:
    single = np.float32
    scale = single(target) if isinstance(target, float) else single(target) / single(size)
    output = int(scale * single(size)) if isinstance(target, float) else target
    assume(output > 0)
    axis = Axis(size=size, output=output, scale=scale, start=0.2, end=0.8)
    attributes = {**rule, "coordinate_transformation_mode": transformation, "extrapolation_value": 7.0}
    if rule["mode"] == "nearest" or transformation == "tf_crop_and_resize":  # not on the edge between two results
        twice = 2 * coordinates(axis, transformation).astype(np.float64)
        assume((np.abs(twice - np.round(twice)) > 1e-4).all())
    table = taps(axis, Interpolation.of(attributes, 19))
    x = numbers(1, 1, 2, size)
    found = np.stack([x[..., at : at + table.weights.shape[1]] for at in table.first], axis=3)
    found = np.where(table.outside, 7.0, (found * table.weights).sum(axis=-1)) if scale != 1 else x

    given_as: dict[str, Any] = {"": None, "z": np.array([1, 1, 2, target])}
    if isinstance(target, float):
        given_as = {"s": factors(1, 1, 1, target)}
    roi = {"r": np.array([0, 0, 0, 0.2, 1, 1, 1, 0.8], np.float32)}
    inputs = {"x": ([1, 1, 2, size], FLOAT), **roi, **given_as}
    node = helper.make_node("Resize", list(inputs), ["y"], **attributes)
    graph = helper.make_graph(
        [node], "graph", [helper.make_tensor_value_info("x", FLOAT, [1, 1, 2, size])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in {**roi, **given_as}.items() if name],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    assert_close(found, onnx_runtime(model, x), within=1e-4)


KNOWN: dict[str, tuple[list[int], dict[str, Any], dict[str, Any]]] = {
    "nearest, blocked": ([1, 16, 6, 5], {"s": factors(1, 1, 2, 2)}, {"mode": "nearest"}),
    "linear to smaller": ([1, 16, 12, 10], {"s": factors(1, 1, 0.6, 0.6)}, {"mode": "linear"}),
    "cubic to smaller": (
        [1, 16, 12, 10], {"s": factors(1, 1, 0.6, 0.6)}, {"mode": "cubic", "exclude_outside": 1},
    ),
    "linear to larger, other corners": ([1, 16, 6, 5], {"s": factors(1, 1, 2, 3)}, CORNERS),
    "antialias": (
        [2, 16, 30, 40], {"z": np.array([2, 16, 7, 9])}, {"mode": "linear", "antialias": 1},
    ),
    "cubic antialias of named axes": (
        [1, 16, 30, 40], {"z": np.array([9, 7])}, {"mode": "cubic", "antialias": 1, "axes": [3, 2]},
    ),
    "a crop": (
        [1, 16, 12, 10], {"r": ROI, "z": np.array([1, 16, 5, 7])},
        {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 3.0},
    ),
    "not larger": (
        [1, 16, 12, 10], {"z": np.array([5, 7])},
        {"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
    ),
    "not smaller": (
        [1, 16, 12, 10], {"z": np.array([15, 14])},
        {"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": "not_smaller"},
    ),
    "opset 10 to smaller": ([1, 16, 12, 10], {"s": factors(1, 1, 0.6, 0.6)}, {"opset": 10}),
    "opset 10 linear": ([1, 16, 6, 5], {"s": factors(1, 1, 2, 2)}, {"opset": 10, "mode": "linear"}),
    "Upsample": ([1, 16, 6, 5], {"s": factors(1, 1, 2, 3)}, {"opset": 9, "mode": "linear"}),
    "one axis of a sequence": ([1, 16, 20], {"s": factors(1, 1, 0.7)}, {"mode": "linear"}),
    "a volume": ([1, 4, 4, 6, 5], {"s": factors(1, 1, 2, 0.5, 2)}, {"mode": "linear"}),
}  # fmt: skip


def resize_of(shape: list[Any], inputs: dict[str, Any], attributes: dict[str, Any], model_of: Make) -> onnx.ModelProto:
    """Return one node; scales are input 2 and sizes input 3 from opset 11 on."""
    opset = attributes.get("opset", 19)
    operator = "Upsample" if opset < 10 else "Resize"
    rest = {name: value for name, value in attributes.items() if name != "opset"}
    names = ["x", "s"] if opset < 11 else ["x", "r" if "r" in inputs else "", "s" if "s" in inputs else "", "z"]
    names = [name if name in ("x", *inputs) or not name else "" for name in names]
    while not names[-1]:
        names.pop()
    constants = {name: value for name, value in inputs.items() if name}
    model = model_of(operator, {"x": (shape, FLOAT), **constants}, opset=opset, **rest)
    model.graph.node[0].input[:] = names
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.every(10)
@pytest.mark.parametrize("name", KNOWN)
def test_a_known_extent_is_resized_as_by_onnx_runtime(name: str, model_of: Make) -> None:
    shape, inputs, attributes = KNOWN[name]
    model, x = resize_of(shape, inputs, attributes, model_of), numbers(*shape)
    expected = onnx_runtime(model, x)
    (found,) = compiled(model, TILED)(x)
    assert_close(found, expected, within=1e-4)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["nearest, blocked", "cubic to smaller", "antialias"])
def test_resizing_between_convolutions_stays_in_their_layout(name: str, model_of: Make) -> None:
    shape, inputs, attributes = KNOWN[name]
    model = resize_of(shape, inputs, attributes, model_of)
    (node,) = model.graph.node
    node.input[0], node.output[0] = "before", "resized"
    model.graph.initializer.append(numpy_helper.from_array(numbers(16, 16, 1, 1), "w"))
    model.graph.node.insert(0, helper.make_node("Conv", ["x", "w"], ["before"]))
    model.graph.node.append(helper.make_node("Relu", ["resized"], ["after"]))
    model.graph.node.append(helper.make_node("Conv", ["after", "w"], ["out0"]))
    x = numbers(*shape)
    expected = onnx_runtime(model, x)
    (found,) = compiled(model, TILED)(x)
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


UNKNOWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "linear, by a factor that is no whole number": ({"s": factors(1, 1, 0.6, 1.5)}, {"mode": "linear"}),
    "linear, doubled, other corners": ({"s": factors(1, 1, 2, 2)}, CORNERS),
    "nearest, doubled": ({"s": factors(1, 1, 2, 2)}, {"mode": "nearest", "nearest_mode": "ceil"}),
    "cubic, to a fixed size": (
        {"z": np.array([1, 3, 6, 9])}, {"mode": "cubic", "coordinate_transformation_mode": "align_corners"},
    ),
    "nearest, of operator set 10": ({"s": factors(1, 1, 0.6, 2)}, {"opset": 10}),
    "cubic, halved": ({"s": factors(1, 1, 0.5, 0.5)}, {"mode": "cubic", "exclude_outside": 1}),
}  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize("name", UNKNOWN)
def test_one_library_resizes_images_of_any_size(name: str, model_of: Make) -> None:
    inputs, attributes = UNKNOWN[name]
    model = resize_of([1, 3, "height", "width"], inputs, attributes, model_of)
    engine = compiled(model, TILED)
    for shape in ((1, 3, 5, 7), (1, 3, 12, 9), (1, 3, 6, 4)):
        x = numbers(*shape)
        assert_close(engine(x)[0], onnx_runtime(model, x), within=1e-4)


def test_what_onnx_runtime_lacks_is_resized_as_the_standard_says(model_of: Make, stock: Options) -> None:
    """ONNX Runtime has cubic interpolation of images alone."""
    model = resize_of([4, 3, 6], {"s": factors(2, 1, 0.5)}, {"mode": "cubic"}, model_of)
    x = numbers(4, 3, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (expected,) = ReferenceEvaluator(model).run(None, {"x": x})  # type: ignore[misc]
    (found,) = compiled(model, stock)(x)
    assert_close(found, expected, within=1e-4)


REFUSED: dict[str, tuple[list[Any], int, dict[str, Any], dict[str, Any], str]] = {
    "integers": (
        [1, 3, 6, 6], TensorProto.UINT8, {"s": factors(1, 1, 2, 2)}, {"mode": "linear"}, "linear of uint8",
    ),
    "antialias": (
        [1, 3, "h", 6], FLOAT, {"s": factors(1, 1, 0.5, 0.5)}, {"mode": "linear", "antialias": 1},
        "antialias of an extent that is not known",
    ),
    "a crop of what is computed": (
        [1, 3, 4, 6], FLOAT, {"r": ([8], FLOAT), "s": factors(1, 1, 0.5, 0.5)},
        {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}, "a roi that are computed from data",
    ),
    "a crop": (
        [1, 3, "h", 6], FLOAT, {"r": ROI, "s": factors(1, 1, 0.5, 0.5)},
        {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"},
        "tf_crop_and_resize of an extent that is not known",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_resized_is_refused_with_its_node(name: str, model_of: Make) -> None:
    shape, dtype, inputs, attributes, reason = REFUSED[name]
    model = resize_of(shape, inputs, attributes, model_of)
    model.graph.input[0].type.tensor_type.elem_type = dtype
    with pytest.raises(CompileError) as refusal:
        import_model(prepare(model))
    assert f"Resize 'the_node' ({reason})" in refusal.value.found


@pytest.mark.parametrize(
    ("inputs", "attributes", "reason"),
    [
        (
            {"z": np.array([3, 4])}, {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
            "keep_aspect_ratio_policy not_larger",
        ),
        ({"z": np.array([1, 3, 4, 4])}, {"mode": "linear", "antialias": 1}, "antialias"),
        ({"s": factors(1, 1, 1.5, 1)}, CORNERS, "align_corners with scale 1.5"),
    ],
)  # fmt: skip
def test_what_depends_on_an_extent_that_is_not_known_is_refused_at_import(
    inputs: dict[str, Any], attributes: dict[str, Any], reason: str, model_of: Make, stock: Options
) -> None:
    model = resize_of([1, 3, "h", 6], inputs, attributes, model_of)
    with pytest.raises(CompileError, match=f"{reason} of an extent that is not known"):
        build(model, Target.from_tag("host"), stock)


def test_corners_aligned_to_a_part_of_a_pixel_are_refused(model_of: Make, stock: Options) -> None:
    model = resize_of([1, 3, 4, 6], {"s": factors(1, 1, 0.5, 0.6)}, CORNERS, model_of)
    with pytest.raises(CompileError, match=r"align_corners from 6 to 3\.6"):
        build(model, Target.from_tag("host"), stock)
