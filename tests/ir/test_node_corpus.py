"""ONNX's own node tests: every model has a canonical form that is stable, valid, and computes the very same bits."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from forge_pipeline.ir import ONNXModule

REFUSED = (
    errors.Fail,
    errors.InvalidGraph,
    errors.NotImplemented,
    errors.InvalidArgument,
    errors.RuntimeException,
    RuntimeError,  # a numpy type that it does not know
)


@pytest.fixture(scope="module")
def corpus():
    """All node tests of the installed onnx, models and inputs made in memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the corpus overflows on purpose
        from onnx.backend.test.loader import load_model_tests

        return [case for case in load_model_tests(kind="node") if case.model is not None]


def arrays(case):
    """Return what the case feeds, None where that is no tensor."""
    values = case.model.graph.input
    if not case.data_sets or any(value.type.WhichOneof("value") != "tensor_type" for value in values):
        return None
    given = case.data_sets[0][0]
    return {
        value.name: numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else np.asarray(item)
        for value, item in zip(values, given, strict=False)
    }


def run(model, feeds):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)


def accepted(model):
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError:
        return False
    return True


@pytest.mark.long
def test_every_node_test_is_the_same_model_in_canonical_form(corpus):
    compared = 0
    for case in corpus:
        form = ONNXModule(case.model).canonical()
        assert form.canonical().to_bytes() == form.to_bytes(), case.name
        assert form.fingerprint == ONNXModule(case.model).fingerprint, case.name
        assert accepted(form.mod) or not accepted(case.model), case.name
        feeds = arrays(case)
        if feeds is None:
            continue
        original = onnx.ModelProto.FromString(case.model.SerializeToString())
        original.ir_version = min(original.ir_version, 13)  # what ONNX Runtime reads
        try:
            expected = run(original, feeds)
        except REFUSED:
            continue
        np.testing.assert_equal(run(form.mod, feeds), expected, err_msg=case.name)
        compared += 1
    assert compared > 1300
