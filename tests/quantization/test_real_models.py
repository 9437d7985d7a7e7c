"""Trained models that nobody here made, beside ONNX Runtime's quantization; skipped where they are not at hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.accuracy import cases, folded, measure, samples
from forge_pipeline.config import bind
from forge_pipeline.data.fitting import input_specs
from forge_pipeline.ir import ONNXModule
from forge_pipeline.locate import conf_dir
from forge_pipeline.quantization.accuracy.equalize import links
from forge_pipeline.quantization.accuracy.evaluator import Evaluator
from forge_pipeline.quantization.build import quantize_statically
from forge_pipeline.quantization.calibration.observe import calibrate
from forge_pipeline.quantization.calibration.probes import Probe
from forge_pipeline.quantization.network import Network, prepare
from forge_pipeline.quantization.settings import Config
from tests.support.paths import SHARED

CASES = {case.name: case for case in cases(SHARED / "models", SHARED / "eval")}
LABELLED = ("digits", "resnet8", "kws", "mnist-8")
pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", LABELLED)
def test_the_default_loses_half_a_point_at_most_and_has_less_noise_than_onnx_runtime(name: str) -> None:
    if not CASES[name].model.is_file():
        pytest.skip(f"{CASES[name].model} is not here")
    results = measure(CASES[name])["results"]
    assert results["default"]["drop"] <= 0.5
    assert results["default"]["sqnr_db"] > results["onnxruntime"]["sqnr_db"]
    assert results["default"]["answers_changed"] <= results["onnxruntime"]["answers_changed"]


def hostile(model: ONNXModule) -> ONNXModule:
    """Rescale channels by factors between 2^-4 and 2^4, wherever that keeps the function."""
    network, draw = Network(prepare(model.mod)), np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for link in links(network, per_channel=True):
        name, axis = link.divided[0]
        factor = 2.0 ** draw.uniform(-4, 4, network.array(name).shape[axis])
        for constants, scale in ((link.divided, 1 / factor), (link.multiplied, factor)):
            for constant, along in constants:
                array = arrays.setdefault(constant, network.array(constant).astype(np.float64))
                shape = [1] * array.ndim
                shape[along] = -1
                arrays[constant] = array * scale.reshape(shape)
    assert arrays
    return ONNXModule(network.with_arrays({name: array.astype(np.float32) for name, array in arrays.items()}).model)


@pytest.mark.parametrize("name", ["digits", "resnet8", "kws"])
def test_the_default_mends_a_hostile_net_to_within_a_point(name: str) -> None:
    if not CASES[name].model.is_file():
        pytest.skip(f"{CASES[name].model} is not here")
    model = folded(CASES[name].model)
    calibration, evaluation = samples(CASES[name], input_specs(model.mod))
    spoiled = hostile(model)
    values = yaml.safe_load((conf_dir() / "quantize" / "static.yaml").read_text())
    config = bind(Config, {**values, "reduce_range": False}, where="quantize")
    feeds = [probe.feed for probe in calibration]
    ranges = calibrate(spoiled, feeds, total=len(feeds), histogram_values=16384)
    result, report = quantize_statically(config, spoiled, ranges, [Probe.of(feed, None) for feed in feeds])
    drop = Evaluator.of(Network(prepare(model.mod)), evaluation).drop(result.mod)
    assert drop is not None
    assert drop <= 1.0
    assert report["improvements"]["equalize"]["kept"]
