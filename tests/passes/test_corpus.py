"""ONNX's own node tests and light models through every configuration: none wrong, none invalid."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import pytest
import yaml
from onnx.backend.test.loader import load_node_model_tests

from forge_pipeline.config import bind
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.tensors import byte_count
from forge_pipeline.passes.verification.exact import REFUSALS, exact_interpreter, outputs_of
from forge_pipeline.stages.fold import Config, run
from tests.support.paths import ROOT

DATA = Path(onnx.backend.test.__file__).parent / "data"
CONF = ROOT / "conf" / "fold"
LIGHT = sorted((DATA / "light").glob("*.onnx"))
SHARDS = 16
MAX_BYTES = 8388608  # as the configurations have it


def _config(name: str) -> Config:
    return bind(Config, yaml.safe_load((CONF / f"{name}.yaml").read_text()), where="fold")


@pytest.fixture(scope="module")
def cases() -> list[Any]:
    """Collect the node tests that have a model and tensors to feed it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases compute with overflows on purpose
        found = load_node_model_tests()
    return [case for case in found if case.model is not None and case.data_sets]


def _outputs(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any] | None:
    try:
        return outputs_of(exact_interpreter(model), inputs)
    except REFUSALS:
        return None  # what ONNX Runtime does not implement, or takes no numpy array for


@pytest.mark.long
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("name", ["basic", "full", "fused"])
def test_node_tests_of_onnx_keep_their_outputs(shard: int, name: str, cases: list[Any]) -> None:
    config = _config(name)
    for case in cases[shard::SHARDS]:
        wrong = check(case, config)
        assert wrong is None, f"{case.name}: {wrong}"


def check(case: Any, config: Config) -> str | None:
    """Return what is wrong with a node test after folding; None where its outputs are what they were."""
    given = [value.name for value in case.model.graph.input]
    fed = dict(zip(given, case.data_sets[0][0], strict=False))
    want = _outputs(case.model, fed)
    result = run(config, ONNXModule(case.model))
    onnx.checker.check_model(result.output.mod)
    if want is None or any("random" in why for why in result.report["unverified"].values()):
        return None
    got = _outputs(result.output.mod, fed)
    if got is None:
        return "no longer runs"
    for a, b in zip(want, got, strict=True):
        if not isinstance(a, np.ndarray):
            continue
        exact = a.dtype.kind != "f"
        if not (np.array_equal(a, b) if exact else np.allclose(b, a, rtol=1e-3, atol=1e-5, equal_nan=True)):
            return f"{a} became {b}"
    return None


@pytest.mark.long
@pytest.mark.skipif(not LIGHT, reason="this build of onnx comes without its light models")
@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_light_models_are_folded_and_no_weight_is_beyond_the_bound(path: Path) -> None:
    model = ONNXModule.from_file(path)
    largest = max(map(byte_count, model.light.graph.initializer))
    result = run(_config("full"), model)
    assert result.report["overall"]["verified"], path.stem
    assert result.report["nodes"][1] <= result.report["nodes"][0]
    assert max(map(byte_count, result.output.light.graph.initializer)) <= max(8 * largest, MAX_BYTES)
