"""Every pass, alone and with the others, keeps what random and real models compute."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from forge_pipeline.config import bind
from forge_pipeline.ir import ONNXModule
from forge_pipeline.passes import PASSES, PassRow, VerifySettings, apply, plan
from forge_pipeline.stages.fold import Config, run
from tests.support import random_graphs
from tests.support.paths import ROOT, SHARED

MODELS = sorted((SHARED / "models").glob("*/*.onnx"))
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def _config(name: str, **changes: Any) -> Config:
    return bind(Config, yaml.safe_load((ROOT / "conf" / "fold" / f"{name}.yaml").read_text()) | changes, where="fold")


def _outputs(model: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def _assert_equal_outputs(before: onnx.ModelProto, after: onnx.ModelProto, seed: int) -> None:
    random = np.random.default_rng(seed)
    fed = {
        value.name: random.normal(size=[d.dim_value for d in value.type.tensor_type.shape.dim]).astype(np.float32)
        for value in before.graph.input
    }
    for want, got in zip(_outputs(before, fed), _outputs(after, fed), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5 * max(1.0, float(np.abs(want).max(initial=0))))


def _generic_passes() -> list[str]:
    """Return the passes that any model may be given: those that change no interface and need no option."""
    return [
        name
        for name, row in PASSES.items()
        if not row.load().changes_interface
        and all(field.default is not MISSING or field.default_factory is not MISSING for field in _options(row))
    ]


def _options(row: PassRow) -> tuple[Field[Any], ...]:
    return fields(row.load().options_type)


def _check_all(model: onnx.ModelProto, *names: str) -> None:
    onnx.checker.check_model(model, full_check=True)
    for name in _generic_passes():
        outcome = apply(model, plan([name], PASSES, where="passes"), None)
        if not outcome.history[0].changes:
            continue
        out = outcome.model
        onnx.checker.check_model(out, full_check=True)
        assert [v.name for v in out.graph.output] == [v.name for v in model.graph.output]
        _assert_equal_outputs(model, out, 1)
    for name in names:
        result = run(_config(name), ONNXModule(model))
        onnx.checker.check_model(result.output.mod, full_check=True)
        _assert_equal_outputs(model, result.output.mod, 2)
        assert result.report["unverified"] == {}


def test_every_pass_keeps_what_a_random_graph_computes() -> None:
    @settings(max_examples=100, deadline=None, suppress_health_check=QUIET)
    @given(model=random_graphs.models())
    def check(model: onnx.ModelProto) -> None:
        _check_all(model, "full")

    check()


@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
def test_every_pass_keeps_what_two_thousand_random_graphs_compute(part: int) -> None:
    @seed(part)
    @settings(max_examples=250, deadline=None, suppress_health_check=QUIET, database=None, phases=[Phase.generate])
    @given(model=random_graphs.models(most=30))
    def check(model: onnx.ModelProto) -> None:
        _check_all(model, "full", "fused")

    check()


def test_the_same_model_gives_the_same_bytes_and_folding_twice_changes_nothing_more() -> None:
    @settings(max_examples=20, deadline=None, suppress_health_check=QUIET)
    @given(model=random_graphs.models(), name=st.sampled_from(["basic", "full", "fused"]))
    def check(model: onnx.ModelProto, name: str) -> None:
        config = _config(name, verify=None)
        once = run(config, ONNXModule(model)).output
        assert run(config, ONNXModule(model)).output.to_bytes() == once.to_bytes()
        again = run(config, once)
        assert again.output.to_bytes() == once.to_bytes()
        assert again.report["history"] == []

    check()


@pytest.mark.skipif(not MODELS, reason="the real models are not beside the repository")
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
@pytest.mark.parametrize(
    "name", ["basic", "full", *(pytest.param(n, marks=pytest.mark.long) for n in ("fused", "streamline"))]
)
def test_real_models_are_folded_and_verified(path: Path, name: str) -> None:
    model = ONNXModule.from_file(path)
    verify = {"rtol": 1e-5, "atol": 1e-6, "samples": 2, "seed": 0, "dims": {}}
    result = run(_config(name, verify=verify), model)
    onnx.checker.check_model(result.output.mod, full_check=True)
    assert result.report["unverified"] == {}
    assert result.report["overall"]["verified"]
    assert result.report["nodes"][1] <= result.report["nodes"][0]
    assert result.output.input_names == model.input_names
    assert list(result.output.mod.graph.output) == list(model.mod.graph.output)


def test_verification_settings_are_those_of_the_configuration() -> None:
    assert _config("full").verify == VerifySettings(rtol=1e-5, atol=1e-6, samples=4, seed=0, dims={})
