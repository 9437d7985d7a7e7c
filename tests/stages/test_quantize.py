"""The quantize stage, on the bundled model and data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import onnx
import pytest
import yaml

from forge_pipeline.config import bind
from forge_pipeline.data import Dataset, Preparation
from forge_pipeline.errors import ConfigError, DataError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.locate import conf_dir
from forge_pipeline.quantization.calibration.ranges import Ranges
from forge_pipeline.stages import calibrate, quantize
from tests.support.paths import ROOT

DIGITS = ROOT / "examples" / "digits"
DATA = Preparation(calibration_samples=200, shuffle=False, seed=0, scale=1.0, offset=0.0, image=None)


def settings(**changes: Any) -> quantize.Config:
    values = yaml.safe_load((conf_dir() / "quantize" / "static.yaml").read_text())
    return bind(quantize.Config, {**values, "reduce_range": False, "data": asdict(DATA), **changes}, where="quantize")


@pytest.fixture(scope="module")
def model() -> ONNXModule:
    return ONNXModule.from_file(DIGITS / "digits.onnx").canonical()


@pytest.fixture(scope="module")
def ranges(model: ONNXModule) -> Ranges:
    config = calibrate.Config(histogram_values=32768, data=DATA)
    output: Ranges = calibrate.run(config, model=model, data=samples()).output
    return output


def samples() -> Dataset:
    return Dataset.open(str(DIGITS / "calibration.npz"))


def accuracy(model: ONNXModule) -> float:
    with np.load(DIGITS / "evaluation.npz") as arrays:
        (scores,) = Interpreter(model.mod, optimized=True)({model.input_names[0]: arrays["x"]}).values()
        return float((scores.argmax(axis=1) == arrays["y"]).mean() * 100)


@pytest.mark.every(2)
@pytest.mark.parametrize("method", ["static", "dynamic"])
def test_the_bundled_model_loses_at_most_half_a_point(model: ONNXModule, ranges: Ranges, method: str) -> None:
    inputs = {"ranges": ranges, "data": samples()} if method == "static" else {}
    result = quantize.run(settings(method=method), model=model, **inputs)
    onnx.checker.check_model(result.output.mod, full_check=True)
    assert accuracy(model) - accuracy(result.output) <= 0.5
    assert result.report["method"] == method
    assert len(result.report["integer_layers"]) == 9


def test_none_returns_the_model_unchanged(model: ONNXModule) -> None:
    result = quantize.run(settings(method="none"), model=model, ranges=None)
    assert result.output.to_bytes() == model.to_bytes()


def test_static_without_ranges_is_refused(model: ONNXModule) -> None:
    with pytest.raises(DataError) as refusal:
        quantize.run(settings(), model=model, ranges=None)
    assert str(refusal.value) == (
        "quantize.method=static: expected ranges from calibration, found none\n"
        "fix: give data.path=FILE to calibrate with, or choose quantize=dynamic, which needs no data"
    )


def test_a_misspelt_value_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError) as refusal:
        settings(calib_method="entropi")
    assert refusal.value.where == "quantize.calib_method"
    assert refusal.value.fix.startswith("did you mean 'entropy'?")


@pytest.mark.parametrize("percentile", [50.0, 100.1])
def test_a_percentile_out_of_range_is_refused(percentile: float) -> None:
    with pytest.raises(ConfigError, match=r"quantize\.percentile: expected a share in percent"):
        settings(percentile=percentile)


def test_a_negative_size_of_probes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"quantize\.probe_mib: expected a size in MiB"):
        settings(probe_mib=-1)
