"""Trained models, quantized without the tools that look for a better one, and samples of their data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml

from benchmarks.accuracy import Case, cases, folded, samples
from forge_pipeline.config import bind
from forge_pipeline.data.fitting import input_specs
from forge_pipeline.ir import ONNXModule
from forge_pipeline.locate import conf_dir
from forge_pipeline.quantization.calibration.observe import calibrate
from forge_pipeline.stages import quantize

MODELS = Path(__file__).parents[2] / "shared" / "models"
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
    ranges = calibrate(
        model, [probe.feed for probe in calibration], total=len(calibration), histogram_values=16384,
        probe_bytes=32 << 20,
    )  # fmt: skip
    config = bind(quantize.Config, {**values, "improve": []}, where="quantize")
    result = quantize.run(config, model=model, ranges=ranges).output
    return result.mod, [dict(probe.feed) for probe in evaluation[:SAMPLES]]
