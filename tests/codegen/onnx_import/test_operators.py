"""Operators, each in forms that importers get wrong: every one computes what ONNX Runtime computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.sums import assert_close, assert_same_sums

FLOAT, BOOL, INT64, INT32 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64, TensorProto.INT32
Make = Callable[..., onnx.ModelProto]
IMAGE = ([1, 4, 6, 6], FLOAT)
SEQUENCE = ([5, 2, 3], FLOAT)


def array(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def scales(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def integers(*values: int, dtype: str = "int64") -> np.ndarray:
    return np.array(values, dtype)


SAME = {"kernel_shape": [3, 2], "strides": [4, 4], "auto_pad": "SAME_LOWER"}
RIGHT: dict[str, tuple[str, dict[str, Any], dict[str, Any], int]] = {
    "convtranspose output_shape": (
        "ConvTranspose", {"x": ([1, 1, 3, 3], FLOAT), "w": array(1, 2, 3, 3)},
        {"strides": [3, 2], "output_shape": [10, 8]}, FLOAT,
    ),
    "maxpool same": ("MaxPool", {"x": IMAGE}, SAME, FLOAT),
    "averagepool same": ("AveragePool", {"x": IMAGE}, SAME, FLOAT),
    "conv same": ("Conv", {"x": IMAGE, "w": array(5, 4, 3, 2)}, SAME, FLOAT),
    "isinf both": ("IsInf", {"x": ([4], FLOAT)}, {}, BOOL),
    "isinf negative": ("IsInf", {"x": ([4], FLOAT)}, {"detect_positive": 0}, BOOL),
    "isinf positive": ("IsInf", {"x": ([4], FLOAT)}, {"detect_negative": 0}, BOOL),
    "isinf none": ("IsInf", {"x": ([4], FLOAT)}, {"detect_negative": 0, "detect_positive": 0}, BOOL),
    "expand both ways": ("Expand", {"x": ([1, 3, 1], FLOAT), "s": integers(2, 1, 6)}, {}, FLOAT),
    "a square": ("Pow", {"x": ([4], FLOAT), "y": np.float32(2)}, {}, FLOAT),
    "a cube": ("Pow", {"x": ([4], FLOAT), "y": np.array([3.0], np.float32)}, {}, FLOAT),
    "a root": ("Pow", {"x": ([4], FLOAT), "y": np.float32(0.5)}, {}, FLOAT),
    "pow by a constant": ("Pow", {"x": ([4], FLOAT), "y": np.float32(2.5)}, {}, FLOAT),
    "pow by an integer": ("Pow", {"x": ([4], FLOAT), "y": integers(2, 3, 0, 1)}, {}, FLOAT),
    "clip": ("Clip", {"x": ([4], FLOAT), "a": np.float32(-0.5), "b": np.float32(0.5)}, {}, FLOAT),
    "clip below": ("Clip", {"x": ([4], FLOAT), "a": np.float32(0)}, {}, FLOAT),
    "max of three": ("Max", {"x": ([2, 4], FLOAT), "y": array(4), "z": array(2, 1)}, {}, FLOAT),
    "mean of three": ("Mean", {"x": ([2, 4], FLOAT), "y": array(4), "z": array(2, 1)}, {}, FLOAT),
    "linear upsampling": ("Resize", {"x": IMAGE, "": None, "s": scales(1, 1, 2, 2)}, {"mode": "linear"}, FLOAT),
    "slice of opset 9": (
        "Slice", {"x": ([4, 5], FLOAT)}, {"starts": [1], "ends": [-1], "axes": [1], "opset": 9}, FLOAT,
    ),
    "slice of opset 9 to the end": (
        "Slice", {"x": ([4, 5], FLOAT)}, {"starts": [1], "ends": [2**63 - 1], "axes": [1], "opset": 9}, FLOAT,
    ),
    "maximum of infinities": ("ReduceMax", {"x": ([2, 3], FLOAT), "a": integers(1)}, {}, FLOAT),
    "greatest of roi": (
        "RoiAlign", {"x": IMAGE, "r": scales(0, 0, 3, 3, 1, 0, 5, 4).reshape(2, 4), "b": integers(0, 0)},
        {"mode": "max", "output_height": 2, "output_width": 2, "sampling_ratio": 2}, FLOAT,
    ),
    "mean of roi": (
        "RoiAlign", {"x": IMAGE, "r": scales(0, 0, 3, 3, 1, 0, 5, 4).reshape(2, 4), "b": integers(0, 0)},
        {"output_height": 2, "output_width": 3, "opset": 10}, FLOAT,
    ),
    "max of a roi": (
        "MaxRoiPool", {"x": IMAGE, "r": scales(0, 0, 0, 3, 3, 0, 1, 2, 5, 4).reshape(2, 5)},
        {"pooled_shape": [2, 3], "spatial_scale": 0.8}, FLOAT,
    ),
    "einsum with an ellipsis": (
        "Einsum", {"x": ([2, 3, 4], FLOAT), "y": array(3, 4, 5), "z": array(5)}, {"equation": "...ij,ijk,k->...i"},
        FLOAT,
    ),
    "einsum of a diagonal": ("Einsum", {"x": ([3, 3, 2], FLOAT)}, {"equation": "iij->ji"}, FLOAT),
    "transform of any length": (
        "DFT", {"x": ([2, 6, 1], FLOAT), "n": np.int64(9)}, {"onesided": 1, "axis": 1, "opset": 17}, FLOAT,
    ),
    "frames": (
        "STFT", {"x": ([1, 20, 1], FLOAT), "s": np.int64(3), "w": array(8)}, {"opset": 17}, FLOAT,
    ),
    "determinant": ("Det", {"x": ([2, 4, 4], FLOAT)}, {}, FLOAT),
    "blocks of scales": (
        "QuantizeLinear",
        {"x": ([4, 6], FLOAT), "s": np.abs(array(2, 6)), "z": integers(*range(12), dtype="int8").reshape(2, 6)},
        {"block_size": 2, "axis": 0, "opset": 21}, TensorProto.INT8,
    ),
    "nothing, negated": ("Neg", {"x": ([2, 0, 3], FLOAT)}, {}, FLOAT),
    "mod with fmod": ("Mod", {"x": ([4], FLOAT), "y": array(4)}, {"fmod": 1}, FLOAT),
}  # fmt: skip

REARRANGED = {
    "depth to space, offsets first": ("DepthToSpace", 13, "DCR"),
    "depth to space, channels first": ("DepthToSpace", 13, "CRD"),
    "space to depth, offsets first": ("SpaceToDepth", 28, "DCR"),
    "space to depth, channels first": ("SpaceToDepth", 28, "CRD"),
}

RECURRENT = {
    "LSTM": {"w": array(2, 16, 3), "r": array(2, 16, 4), "b": array(2, 32)},
    "GRU": {"w": array(2, 12, 3), "r": array(2, 12, 4), "b": array(2, 24)},
    "RNN": {"w": array(2, 4, 3), "r": array(2, 4, 4), "b": array(2, 8)},
}
STATE = {"": None, "h": array(2, 2, 4, seed=2)}


def result(model: onnx.ModelProto, options: Options, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return Engine(build(model, Target.from_tag("host"), options).to_bytes(), threads=1)(*feeds.values())


def expect_equal(model: onnx.ModelProto, options: Options, feeds: dict[str, np.ndarray]) -> None:
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    for want, have in zip(expected, result(model, options, feeds), strict=True):
        assert have.dtype == want.dtype
        assert_close(have, want, within=1e-5)


@pytest.mark.every(10)
@pytest.mark.parametrize("case", RIGHT)
def test_what_was_mended_computes_what_onnx_runtime_computes(case: str, model_of: Make, stock: Options) -> None:
    operator, inputs, attributes, dtype = RIGHT[case]
    shape = inputs["x"][0]
    x = array(*shape) if operator != "IsInf" else scales(np.inf, -np.inf, np.nan, 1)
    if operator == "ReduceMax":
        x[0] = -np.inf
    expect_equal(
        model_of(operator, inputs, outputs=(dtype,), **attributes), stock, {"x": np.abs(x) if operator == "Pow" else x}
    )


SEVERAL: dict[str, tuple[str, dict[str, Any], dict[str, Any], tuple[int, ...]]] = {
    "layer norm's mean": ("LayerNormalization", {"x": IMAGE, "s": array(6)}, {"opset": 17}, (FLOAT, FLOAT)),
    "places of a pool": ("MaxPool", {"x": IMAGE}, {"kernel_shape": [2, 2], "strides": [2, 2]}, (FLOAT, INT64)),
    "dropout's mask": ("Dropout", {"x": IMAGE}, {}, (FLOAT, BOOL)),
    "rms norm over two": ("RMSNormalization", {"x": IMAGE, "s": array(6, 6)}, {"axis": -2, "opset": 23}, (FLOAT,)),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("case", SEVERAL)
def test_every_result_of_an_operator_is_computed(case: str, model_of: Make, stock: Options) -> None:
    operator, inputs, attributes, outputs = SEVERAL[case]
    expect_equal(model_of(operator, inputs, outputs=outputs, **attributes), stock, {"x": array(1, 4, 6, 6)})


def test_a_sum_of_nothing_is_zero(model_of: Make, stock: Options) -> None:
    model = model_of("ReduceSum", {"x": ([2, 0, 3], FLOAT), "a": integers(1)})
    options = dataclasses.replace(stock, generator="tiled", opt_level=3)
    expect_equal(model, options, {"x": array(2, 0, 3)})


@pytest.mark.parametrize("generator", ["stock", "tiled"])
def test_flags_are_compared(generator: str, model_of: Make, stock: Options) -> None:
    model = model_of("Equal", {"x": (["n", 64], BOOL), "y": ([64], BOOL)}, outputs=(BOOL,))
    options = dataclasses.replace(stock, generator=generator, opt_level=3)
    expect_equal(model, options, {"x": array(3, 64) > 0, "y": array(64, seed=2) > 0})


@pytest.mark.parametrize("slopes", [(1,), (1, 1, 1), (4, 1), ("length",)])
def test_a_slope_below_zero_is_for_an_axis_of_any_size(slopes: tuple[Any, ...], model_of: Make, stock: Options) -> None:
    slope = (slopes, FLOAT) if "length" in slopes else array(*slopes)
    model = model_of("PRelu", {"x": (["batch", 4, "length"], FLOAT), "s": slope})
    options = dataclasses.replace(stock, generator="auto", opt_level=3)
    given = {"s": array(7, seed=2)} if "length" in slopes else {}
    expect_equal(model, options, {"x": array(2, 4, 7), **given})


@pytest.mark.every(3)
@pytest.mark.parametrize("shape", [[2, 8, 4, 6], ["N", 8, "H", "W"]])
@pytest.mark.parametrize("case", REARRANGED)
def test_blocks_of_pixels_and_channels_change_places_in_every_mode(
    case: str, shape: list[Any], model_of: Make, stock: Options
) -> None:
    operator, opset, mode = REARRANGED[case]
    model = model_of(operator, {"x": (shape, FLOAT)}, opset=opset, blocksize=2, mode=mode)
    x = array(2, 8, 4, 6)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})  # type: ignore[misc]
    np.testing.assert_array_equal(result(model, stock, {"x": x})[0], expected)


@pytest.mark.every(8)
@pytest.mark.parametrize("variant", ["plain", "with state", "batch first"])
@pytest.mark.parametrize("operator", RECURRENT)
def test_recurrent_layers_run_both_ways(operator: str, variant: str, model_of: Make, stock: Options) -> None:
    inputs = {"x": SEQUENCE, **RECURRENT[operator], **(STATE if variant == "with state" else {})}
    attributes: dict[str, Any] = {"hidden_size": 4, "direction": "bidirectional"}
    outputs = (FLOAT,) * (3 if operator == "LSTM" else 2)
    if operator == "LSTM" and variant == "with state":
        inputs |= {"c": array(2, 2, 4, seed=3), "p": array(2, 12, seed=4)}
    model = model_of(operator, inputs, outputs=outputs, **attributes)
    if variant == "batch first":
        model = model_of(operator, {**inputs, "x": ([2, 5, 3], FLOAT)}, outputs=outputs, layout=1, **attributes)
        plain = model_of(operator, inputs, outputs=outputs, **attributes)
        x = array(5, 2, 3)
        expected = result(plain, stock, {"x": x})
        found = result(model, stock, {"x": np.ascontiguousarray(x.transpose(1, 0, 2))})
        np.testing.assert_allclose(found[0], expected[0].transpose(2, 0, 1, 3), rtol=1e-6)
        np.testing.assert_allclose(found[1], expected[1].transpose(1, 0, 2), rtol=1e-6)
    else:
        expect_equal(model, stock, {"x": array(5, 2, 3)})


@pytest.mark.every(2)
@pytest.mark.parametrize("linear", [0, 1])
def test_a_gru_resets_before_or_after_the_product(linear: int, model_of: Make, stock: Options) -> None:
    inputs = {"x": SEQUENCE, **{key: value[:1] for key, value in RECURRENT["GRU"].items()}}
    model = model_of(
        "GRU", inputs, outputs=(FLOAT, FLOAT), hidden_size=4, linear_before_reset=linear, direction="reverse"
    )
    expect_equal(model, stock, {"x": array(5, 2, 3)})


@pytest.mark.every(8)
@pytest.mark.parametrize("operator", RECURRENT)
@pytest.mark.parametrize("generator", ["stock", "auto"])
def test_one_library_serves_any_number_of_steps(operator: str, generator: str, model_of: Make, stock: Options) -> None:
    inputs = {"x": (["steps", "batch", 3], FLOAT), **RECURRENT[operator]}
    outputs = (FLOAT,) * (3 if operator == "LSTM" else 2)
    model = model_of(operator, inputs, outputs=outputs, hidden_size=4, direction="bidirectional")
    options = dataclasses.replace(stock, generator=generator, opt_level=3)
    engine = Engine(build(model, Target.from_tag("host"), options).to_bytes(), threads=1)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for steps, batch in ((1, 1), (7, 2), (40, 3)):
        x = array(steps, batch, 3)
        for want, have in zip(session.run(None, {"x": x}), engine(x), strict=True):
            assert_close(have, want, within=1e-5)


@pytest.mark.parametrize("inverse", [0, 1])
def test_one_library_transforms_signals_of_any_length(inverse: int, model_of: Make, stock: Options) -> None:
    model = model_of("DFT", {"x": ([2, "length", 2], FLOAT)}, axis=1, inverse=inverse, opset=17)
    options = dataclasses.replace(stock, generator="auto", opt_level=3)
    engine = Engine(build(model, Target.from_tag("host"), options).to_bytes(), threads=1)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for length in (1, 6, 31):
        x = array(2, length, 2)
        assert_close(engine(x)[0], session.run(None, {"x": x})[0], within=1e-4)


def test_two_transforms_of_one_length_share_their_matrix(model_of: Make, stock: Options) -> None:
    model = model_of("DFT", {"x": ([2, "length", 2], FLOAT)}, axis=1, opset=17)
    (name,) = (value.name for value in model.graph.output)
    model.graph.node.append(onnx.helper.make_node("DFT", [name], ["twice"], axis=1))
    model.graph.output[0].name = "twice"
    imported = import_model(prepare(model))
    assert str(imported["main"]).count("fourier_matrix,") == 1
    options = dataclasses.replace(stock, generator="auto", opt_level=3)
    engine = Engine(build(model, Target.from_tag("host"), options).to_bytes(), threads=1)
    x = array(2, 31, 2)
    again = np.roll(x[:, ::-1], 1, axis=1)
    assert_close(engine(x)[0], 31 * again, within=1e-4)


def test_a_mean_of_a_window_larger_than_the_image_is_that_of_the_image_where_results_are_rounded_up() -> None:
    node = helper.make_node(
        "AveragePool", ["x"], ["y"], kernel_shape=[9, 9], strides=[9, 9], ceil_mode=1, count_include_pad=1
    )
    graph = helper.make_graph(
        [node],
        "whole",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 1, 1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    x = np.random.default_rng(0).standard_normal((1, 4, 2, 3)).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    options = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
    (found,) = Engine(build(model, Target.from_tag("host"), options).to_bytes(), threads=1)(x)
    assert_same_sums(found, wanted, terms=6)
