"""Each operator computes in ONNX what TensorFlow Lite's interpreter computed, also in the calls after the first."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from forge_pipeline.frontends.tflite import convert
from tests.support.frontends.tflite_cases import kept, session, written

CASES = sorted(key.removesuffix("/out/0/0") for key in kept() if key.endswith("/out/0/0"))
STEPS = {"lstm_integer": 1, "per_axis": 1, "sixteen_bits": 1}
"""Integers: by how many steps a result may differ; the interpreter computes in fixed point."""
TOLERANCES = {"lstm_integer_weights": 0.03}
"""Of the largest number. The interpreter rounds what meets integer weights to 8 bits at run time."""


def calls(name):
    """Return the inputs and outputs of each call."""
    found = []
    while f"{name}/out/{len(found)}/0" in kept():
        prefixes = [f"{name}/{side}/{len(found)}/" for side in ("in", "out")]
        found.append(
            [[value for key, value in sorted(kept().items()) if key.startswith(prefix)] for prefix in prefixes]
        )
    return found


def first(notes, model):
    """Return what the first call is given for what is kept."""
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.input}
    types = {
        value.name: onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        for value in model.graph.input
    }
    names = [entry["input"] for entry in notes.get("state", [])]
    numbers = [entry["first"] for entry in notes.get("state", [])]
    return {
        name: np.broadcast_to(np.array(number, types[name]), shapes[name])
        for name, number in zip(names, numbers, strict=True)
    }


@pytest.mark.parametrize("name", CASES)
def test_an_operator_computes_what_the_interpreter_computed(tmp_path, name):
    converted = convert.convert(written(tmp_path, name), ())
    onnx.checker.check_model(converted.model, full_check=True)
    run = session(converted.model)
    state = first(converted.notes, converted.model)
    own = [value.name for value in run.get_inputs() if value.name not in state]
    outputs = [value.name for value in run.get_outputs()]
    for given, wanted in calls(name):
        found = dict(zip(outputs, run.run(None, dict(zip(own, given, strict=True)) | state), strict=True))
        state = {entry["input"]: found.pop(entry["output"]) for entry in converted.notes.get("state", [])}
        for value, expected in zip(found.values(), wanted, strict=True):
            assert (value.shape, value.dtype) == (expected.shape, expected.dtype)
            if expected.dtype.kind == "f":
                scale = max(1e-9, float(np.abs(expected).max(initial=0)))
                np.testing.assert_allclose(value, expected, rtol=0, atol=TOLERANCES.get(name, 2e-6) * scale)
            else:
                difference = np.abs(value.astype(np.int64) - expected.astype(np.int64))
                assert difference.max(initial=0) <= STEPS.get(name, 0)
