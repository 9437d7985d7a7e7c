"""The calibrate stage, on the bundled model and data."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from forge_pipeline.data import Dataset, Preparation
from forge_pipeline.errors import ConfigError, DataError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.stages import calibrate
from tests.support.paths import ROOT
from tests.support.sums import HALF_UNIT, terms_of

DIGITS = ROOT / "examples" / "digits"
DATA = Preparation(calibration_samples=50, shuffle=False, seed=0, scale=1.0, offset=0.0, image=None)
CONFIG = calibrate.Config(histogram_values=32768, data=DATA)


@pytest.fixture(scope="module")
def model() -> ONNXModule:
    return ONNXModule.from_file(DIGITS / "digits.onnx").canonical()


@pytest.fixture(scope="module")
def data() -> Dataset:
    return Dataset.open(str(DIGITS / "calibration.npz"))


def test_minimum_and_maximum_are_those_of_onnx_runtime(model: ONNXModule, data: Dataset) -> None:
    result = calibrate.run(CONFIG, model=model, data=data)
    values = [name for name in result.output if name not in model.input_names]
    session = Interpreter(onnx.version_converter.convert_version(model.mod, 18), taps=values, optimized=True)
    with np.load(DIGITS / "calibration.npz") as arrays:
        found = session({model.input_names[0]: arrays["x"][:50]})
    terms = terms_of(model.mod)
    for name in values:
        low, high = result.output[name].low, result.output[name].high
        bound = 2 * terms * HALF_UNIT * np.abs(found[name]).max()
        np.testing.assert_allclose([low, high], [found[name].min(), found[name].max()], rtol=0, atol=bound)
    assert result.report["samples"] == 50
    assert result.report["tensors"].keys() == result.output.keys()


def test_the_same_inputs_give_the_same_bytes(model: ONNXModule, data: Dataset) -> None:
    one, two = (calibrate.run(CONFIG, model=model, data=data).output.to_bytes() for _ in range(2))
    assert one == two


def test_no_data_is_refused(model: ONNXModule) -> None:
    with pytest.raises(DataError) as refusal:
        calibrate.run(CONFIG, model=model, data=None)
    assert str(refusal.value) == (
        "data.path: expected calibration data for static quantization, found null\n"
        "fix: give data.path=FILE.npz, or choose quantize=dynamic or quantize=none"
    )


def test_a_count_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"calibrate\.histogram_values"):
        calibrate.Config(histogram_values=0, data=DATA)
