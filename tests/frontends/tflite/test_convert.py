"""TensorFlow Lite models compute in ONNX what its interpreter computed from them; integers stay integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.tflite import convert, reader
from forge_pipeline.frontends.tflite.operators import table
from tests.support.frontends.hybrid import rounded
from tests.support.frontends.tflite_cases import written
from tests.support.paths import SHARED

MODELS = Path(__file__).parent / "models"
FLOATS = ("float", "float16", "numbers", "moves")


@pytest.fixture(scope="module")
def expected():
    with np.load(MODELS / "expected.npz") as archive:
        return dict(archive)


def run(model, feed, level="ORT_DISABLE_ALL"):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, {session.get_inputs()[0].name: feed}), strict=True))


@pytest.mark.parametrize("name", FLOATS)
def test_a_float_model_computes_what_the_interpreter_computed(expected, name):
    found = run(convert.convert(MODELS / f"{name}.tflite", ()).model, expected["image"])
    wanted = {key.partition("/")[2]: value for key, value in expected.items() if key.startswith(f"{name}/")}
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key].dtype == value.dtype
        scale = np.abs(value).max()
        np.testing.assert_allclose(found[key], value, rtol=0, atol=2e-6 * scale, err_msg=key)


def test_weights_in_half_precision_stay_so():
    model = convert.convert(MODELS / "float16.tflite", ()).model
    large = [tensor for tensor in model.graph.initializer if numpy_helper.to_array(tensor).size > 100]
    assert {numpy_helper.to_array(tensor).dtype.name for tensor in large} == {"float16"}


def test_a_dynamic_range_model_keeps_its_integer_weights_and_computes_in_float(expected):
    model = convert.convert(MODELS / "dynamic.tflite", ()).model
    kinds = {numpy_helper.to_array(tensor).dtype.name for tensor in model.graph.initializer if len(tensor.dims) == 4}
    assert "int8" in kinds
    assert "QuantizeLinear" not in {node.op_type for node in model.graph.node}
    found = run(model, expected["image"])
    # The interpreter rounds what goes into a product to 8 bits, at run time.
    np.testing.assert_allclose(found["probs"], expected["dynamic/probs"], atol=0.03)


def test_a_dynamic_range_model_differs_by_the_interpreters_rounding_and_nothing_else(expected):
    found = run(rounded(convert.convert(MODELS / "dynamic.tflite", ()).model), expected["image"])
    with np.load(MODELS / "dynamic_plain.npz") as plain:
        assert found.keys() == set(plain)
        for key, value in plain.items():
            np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-6 * np.abs(value).max(), err_msg=key)


def test_a_full_integer_model_is_in_qdq_form_and_off_by_a_step_at_most(expected):
    model = convert.convert(MODELS / "int8.tflite", ()).model
    found = run(model, expected["integer_image"])
    for key in ("probs", "feat"):
        assert found[key].dtype == np.int8
        difference = found[key].astype(int) - expected[f"int8/{key}"]
        assert np.abs(difference).max() <= 1
    operators = {node.op_type for node in model.graph.node}
    assert {"QuantizeLinear", "DequantizeLinear", "Conv", "Gemm"} <= operators
    biases = [tensor for tensor in model.graph.initializer if tensor.data_type == 6]
    assert len(biases) == 3  # int32, behind their own DequantizeLinear


def test_a_chain_of_convolutions_is_turned_around_once():
    model = convert.convert(MODELS / "float.tflite", ()).model
    assert [node.op_type for node in model.graph.node].count("Transpose") == 1


def test_the_batch_is_open_where_three_samples_give_what_they_give_one_by_one(expected):
    network, fixed = (convert.convert(MODELS / f"{name}.tflite", ()) for name in ("float", "moves"))
    assert network.notes["batch"] == "open"
    assert network.model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    assert fixed.notes["batch"] == "fixed"  # one of its outputs has no batch
    assert fixed.model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1


def test_operators_without_a_converter_are_all_named(monkeypatch):
    for name in ("TANH", "MEAN"):
        monkeypatch.delitem(table.OPERATORS, name)
    with pytest.raises(ModelError, match="found MEAN, TANH\nfix: give the SavedModel"):
        convert.convert(MODELS / "float.tflite", ())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a_graph_that_runs_itself", "subgraph 0: expected one of 1 that takes 1 values and does not run itself"),
        ("random_numbers", "found RANDOM_UNIFORM"),
        ("complex_numbers", "input or output 't2': expected real numbers, found a value of type complex64"),
        ("soft_suppression", "operator 0, NON_MAX_SUPPRESSION_V5: expected a sigma of 0, found soft suppression"),
    ],
)
def test_what_is_not_known_is_refused_by_its_name(tmp_path, name, message):
    with pytest.raises(ModelError, match=message):
        convert.convert(written(tmp_path, f"read_{name}"), ())


@pytest.mark.parametrize("cut", [9, 100, 1000, 8000, 16000])
def test_a_cut_file_is_refused(tmp_path, cut):
    path = tmp_path / "cut.tflite"
    path.write_bytes((MODELS / "float.tflite").read_bytes()[:cut])
    with pytest.raises(ModelError, match=r"expected a whole TensorFlow Lite model, found a damaged or cut one\nfix"):
        reader.read(path)


def test_a_damaged_file_is_refused_or_read_and_nothing_else(tmp_path):
    content = (MODELS / "int8.tflite").read_bytes()
    random = np.random.default_rng(0)
    path = tmp_path / "damaged.tflite"
    refused = 0
    for _ in range(60):
        damaged = bytearray(content)
        for position in random.integers(8, 3000, 8):
            damaged[position] ^= 1 << int(random.integers(8))
        path.write_bytes(damaged)
        try:
            reader.read(path)
        except ModelError:
            refused += 1
    assert refused > 0


def top1(model, samples, labels, level="ORT_ENABLE_ALL"):
    (found,) = run(model, samples, level).values()
    return int((found.argmax(1) == labels).sum())


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/models and ../shared/eval")
@pytest.mark.parametrize(
    ("folder", "name", "data", "right"),
    [
        ("mlperf_tiny_resnet8", "resnet8", "cifar10_1200", {"": 927, "_int8": 298}),
        ("mlperf_tiny_kws_dscnn", "kws", "kws_1000", {"": 901, "_int8": 364}),
    ],
)
def test_real_models_score_what_their_onnx_form_scores(folder, name, data, right):
    import onnx

    with np.load(SHARED / "eval" / f"{data}.npz") as archive:
        x, labels = archive["x"], archive["y"]
    floats = x.astype(np.float32) if name == "resnet8" else ((x.astype(np.float32) - 83) * 0.5847029089927673)
    integers = (x.astype(np.int16) - 128).astype(np.int8) if name == "resnet8" else x
    path = SHARED / "models" / folder
    reference = top1(onnx.load(path / f"{name}.onnx"), floats, labels)
    assert top1(convert.convert(path / f"{name}.tflite", ()).model, floats, labels) == reference == right[""]
    few = slice(400)  # without optimisations: those of ONNX Runtime saturate where the CPU has no VNNI
    model = convert.convert(path / f"{name}_int8.tflite", ()).model
    assert top1(model, integers[few], labels[few], "ORT_DISABLE_ALL") == right["_int8"]
