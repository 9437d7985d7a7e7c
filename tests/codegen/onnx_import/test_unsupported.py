"""What TVM's importer computes wrong without an error: right here, or refused by name before any work starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from forge_pipeline import RelaxModule
from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.onnx_import.importer import check_supported
from forge_pipeline.codegen.onnx_import.unsupported import TRAPS
from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import CompileError
from forge_pipeline.runtime.engine import Engine
from forge_pipeline.target import Target
from tests.support.paths import ROOT

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


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "roialign max": (
        "RoiAlign", {"x": IMAGE, "r": scales(0, 0, 3, 3).reshape(1, 4), "b": integers(0)}, {"mode": "max"}, "mode max",
    ),
    "empty reduction": ("ReduceMax", {"x": ([2, 0, 3], FLOAT), "a": integers(1)}, {}, "over an empty set"),
    "mod of floats": ("Mod", {"x": ([3], FLOAT), "y": array(3)}, {}, "floating point without fmod"),
    "shift by too much": (
        "BitShift", {"x": ([2], TensorProto.UINT8), "y": integers(1, 8, dtype="uint8")}, {"direction": "LEFT"},
        "shifts by what is not a constant within the width of the type",
    ),
    "dropout in training": (
        "Dropout", {"x": ([4], FLOAT), "r": np.float32(0.5), "t": np.bool_(True)}, {}, "training mode",
    ),
    "batchnorm in training": (
        "BatchNormalization", {"x": IMAGE, **{k: np.abs(array(4)) for k in "sbmv"}}, {"training_mode": 1},
        "training mode",
    ),
    "axes that are data": (
        "ReduceSum", {"x": ([2, 3], FLOAT), "a": ([1], INT64)}, {}, "axes are not a constant",
    ),
    "limits that are data": (
        "NonMaxSuppression",
        {"b": ([1, 4, 4], FLOAT), "s": ([1, 1, 4], FLOAT), "m": integers(2), "i": ([1], FLOAT)}, {},
        "input 3 is not a constant",
    ),
    "several lengths": (
        "LSTM",
        {"x": SEQUENCE, "w": array(1, 16, 3), "r": array(1, 16, 4), "": None, "l": integers(5, 3, dtype="int32")},
        {"hidden_size": 4}, "sequences of several lengths",
    ),
    "unknown activation": (
        "RNN", {"x": SEQUENCE, "w": array(1, 4, 3), "r": array(1, 4, 4)},
        {"hidden_size": 4, "activations": ["Softsign"]}, "activation Softsign",
    ),
}  # fmt: skip

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
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", REFUSED)
def test_a_use_that_would_be_wrong_is_refused_with_its_node(case: str, model_of: Make) -> None:
    operator, inputs, attributes, reason = REFUSED[case]
    with pytest.raises(CompileError) as refusal:
        check_supported(model_of(operator, inputs, **attributes))
    assert f"{operator} 'the_node' ({reason})" in refusal.value.found


@pytest.mark.parametrize("operator", ["Dropout", "MaxPool", "LayerNormalization"])
def test_a_second_output_that_does_not_exist_is_refused(operator: str, model_of: Make) -> None:
    inputs: dict[str, Any] = {"x": IMAGE}
    attributes: dict[str, Any] = {"kernel_shape": [2, 2]} if operator == "MaxPool" else {}
    if operator == "LayerNormalization":
        inputs["s"] = array(6)
    second = {"Dropout": BOOL, "MaxPool": INT64, "LayerNormalization": FLOAT}[operator]
    with pytest.raises(CompileError, match=f"{operator} 'the_node'"):
        check_supported(model_of(operator, inputs, outputs=(FLOAT, second), **attributes))


def test_a_second_output_that_nobody_reads_is_no_reason_to_refuse(model_of: Make) -> None:
    model = model_of("Dropout", {"x": IMAGE}, outputs=(FLOAT, BOOL))
    del model.graph.output[1]
    check_supported(model)


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


DEFINED: dict[str, tuple[str, dict[str, Any], dict[str, Any], int]] = {
    "layer norm's mean": ("LayerNormalization", {"x": IMAGE, "s": array(6)}, {"opset": 17}, 2),
    "rms norm over two": ("RMSNormalization", {"x": IMAGE, "s": array(6, 6)}, {"axis": -2, "opset": 23}, 1),
}


@pytest.mark.parametrize("case", DEFINED)
def test_what_a_definition_mends_computes_what_onnx_runtime_computes(case: str, model_of: Make, stock: Options) -> None:
    operator, inputs, attributes, outputs = DEFINED[case]
    model = model_of(operator, inputs, outputs=(FLOAT,) * outputs, **attributes)
    with pytest.raises(CompileError):
        check_supported(model)
    expect_equal(model, stock, {"x": array(1, 4, 6, 6)})


@pytest.mark.parametrize("generator", ["stock", "tiled"])
def test_flags_are_compared(generator: str, model_of: Make, stock: Options) -> None:
    model = model_of("Equal", {"x": (["n", 64], BOOL), "y": ([64], BOOL)}, outputs=(BOOL,))
    options = dataclasses.replace(stock, generator=generator, opt_level=3)
    expect_equal(model, options, {"x": array(3, 64) > 0, "y": array(64, seed=2) > 0})


def test_an_expansion_to_a_shape_that_is_data_is_refused(model_of: Make, stock: Options) -> None:
    model = model_of("Expand", {"x": ([1, 3], FLOAT), "s": ([2], INT64)})
    with pytest.raises(CompileError, match="its shape is computed from data"):
        build(model, Target.from_tag("host"), stock)


def test_sorting_a_type_that_the_runtime_does_not_sort_is_refused(model_of: Make) -> None:
    model = model_of("TopK", {"x": ([5], TensorProto.UINT32), "k": integers(2)}, outputs=(TensorProto.UINT32, INT64))
    with pytest.raises(CompileError, match="a type that TVM's runtime does not sort"):
        check_supported(model)


def test_a_product_without_the_own_number_is_refused(model_of: Make, stock: Options) -> None:
    model = model_of("CumProd", {"x": ([4], FLOAT), "a": np.int64(0)}, opset=26, exclusive=1)
    with pytest.raises(CompileError, match="the exclusive form"):
        build(model, Target.from_tag("host"), stock)


def test_a_box_that_overlaps_by_the_threshold_stays(model_of: Make) -> None:
    boxes = scales(0, 0, 1, 1, 0, 0.5, 1, 1.5, 0, 3, 1, 4).reshape(1, 3, 4)  # the first two overlap by a third
    inputs = {
        "b": boxes, "x": ([1, 1, 3], FLOAT), "m": integers(3), "i": scales(1 / 3), "t": scales(0.1),
    }  # fmt: skip
    model, scores = model_of("NonMaxSuppression", inputs, outputs=(INT64,)), scales(0.9, 0.8, 0.7).reshape(1, 1, 3)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": scores})
    np.testing.assert_array_equal(RelaxModule.from_onnx(model).get_inference_function()(scores), expected)


def test_the_table_of_traps_names_every_trap_and_tests_that_exist() -> None:
    text = (ROOT / "docs/traps.md").read_text()
    rows = [row.split(" | ") for row in text.splitlines() if "::" in row]
    for place, name in (row[-1].removesuffix(" |").split("::") for row in rows):
        test, _, case = name.partition("[")
        source = (ROOT / "tests" / place).read_text()
        assert f"def {test}(" in source, name
        assert not case or f'"{case.removesuffix("]")}"' in source, name
    missing = [operator for operator in TRAPS if not any(operator in row[0] for row in rows)]
    assert missing == []


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


@pytest.mark.parametrize("linear", [0, 1])
def test_a_gru_resets_before_or_after_the_product(linear: int, model_of: Make, stock: Options) -> None:
    inputs = {"x": SEQUENCE, **{key: value[:1] for key, value in RECURRENT["GRU"].items()}}
    model = model_of(
        "GRU", inputs, outputs=(FLOAT, FLOAT), hidden_size=4, linear_before_reset=linear, direction="reverse"
    )
    expect_equal(model, stock, {"x": array(5, 2, 3)})


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
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)
