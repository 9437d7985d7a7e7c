"""Trained models, quantized without the tools that look for a better one, and samples of their data."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
import yaml

from benchmarks.accuracy import Case, cases, folded, samples
from forge_pipeline.config import bind
from forge_pipeline.data.fitting import input_specs
from forge_pipeline.ir import ONNXModule
from forge_pipeline.locate import conf_dir
from forge_pipeline.quantization.build import quantize_statically
from forge_pipeline.quantization.calibration.observe import calibrate
from forge_pipeline.quantization.calibration.probes import Probe
from forge_pipeline.quantization.settings import Config
from tests.support.paths import SHARED

MODELS = SHARED / "models"
CASES = {case.name: case for case in cases(MODELS, MODELS.parent / "eval")}
CALIBRATION, SAMPLES = 16, 2


def _folded(name: str) -> tuple[Case, ONNXModule]:
    case = CASES[name]
    if not case.model.is_file():
        pytest.skip(f"{case.model} is not here")
    return case, folded(case.model)


def in_float(name: str) -> tuple[onnx.ModelProto, list[dict[str, Any]]]:
    """Return a model as `fold` leaves it, and samples; skips the test where the model is not here."""
    case, model = _folded(name)
    _, evaluation = samples(case, input_specs(model.mod))
    return model.mod, [dict(probe.feed) for probe in evaluation[:SAMPLES]]


def in_bytes(name: str) -> tuple[onnx.ModelProto, list[dict[str, Any]]]:
    """Return a quantized model, and samples; skips the test where the model is not here."""
    case, model = _folded(name)
    calibration, evaluation = (part[:CALIBRATION] for part in samples(case, input_specs(model.mod)))
    values = yaml.safe_load((conf_dir() / "quantize" / "static.yaml").read_text())
    feeds = [probe.feed for probe in calibration]
    ranges = calibrate(model, feeds, total=len(feeds), histogram_values=16384)
    config = bind(Config, {**values, "improve": []}, where="quantize")
    result, _ = quantize_statically(config, model, ranges, [Probe.of(feed, None) for feed in feeds])
    return result.mod, [dict(probe.feed) for probe in evaluation[:SAMPLES]]
