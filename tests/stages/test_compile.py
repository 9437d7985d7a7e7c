"""The stage: the identity of a build in its metadata, and a report for people."""

from __future__ import annotations

import dataclasses
import shutil
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.config import bind, defaults
from forge_pipeline.data import Dataset
from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import CompileError, ConfigError, TargetError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.locate import conf_dir
from forge_pipeline.stages.compile import Config, run
from forge_pipeline.stages.contract import Result
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.classifier import classifier

KEY = "0f" * 32


def config(tag: str = "host", **changes: Any) -> Config:
    values = yaml.safe_load((conf_dir() / "compile/default.yaml").read_text())
    del values["dump"]  # the runner's, which hands it over beside the configuration
    return bind(Config, {**values, "target": dataclasses.asdict(Target.from_tag(tag)), **changes}, where="compile")


@pytest.fixture(scope="module")
def model() -> ONNXModule:
    """Return a small classifier for any batch, with the bundled model's interface."""
    return ONNXModule(classifier())


@pytest.fixture(scope="module")
def built(model: ONNXModule) -> Result:
    return run(config(export_relax=True), model, key=KEY)


def test_the_metadata_names_build_model_tools_and_target(built: Result, model: ONNXModule) -> None:
    metadata = built.output.metadata
    assert metadata["stage_key"] == KEY
    assert metadata["fingerprint"] == model.fingerprint
    assert metadata["target"]["tag"] == "host"
    assert sorted(metadata["tools"]) == ["apache-tvm", "apache-tvm-ffi", "ziglang"]
    assert metadata["quantization"] == {"QuantizeLinear": 0, "DequantizeLinear": 0}
    assert canonical_json(dict(metadata)) == built.output.metadata_bytes()


def test_the_library_runs_and_says_what_it_is(built: Result) -> None:
    engine = Engine(built.output.to_bytes())
    assert engine.metadata["stage_key"] == KEY
    assert [tensor.name for tensor in engine.inputs] == ["image"]


def test_the_report_has_errors_sizes_and_the_text_that_was_asked_for(built: Result) -> None:
    assert built.report["verification"]["error"]["logits"] <= 1e-4
    library = built.output
    assert built.report["sizes"] == {
        "code": len(library.elf),
        "weights": len(library.weights),
        "program": len(library.program),
    }
    assert len(library.program) > 0
    assert "R.nn.conv2d" in built.report["relax"]
    canonical_json(dict(built.report))


def test_the_uuid_follows_from_the_key_unless_one_is_chosen(built: Result) -> None:
    derived = uuid.UUID(built.output.metadata["uuid"])
    assert derived.version == 5
    chosen = "123e4567-e89b-12d3-a456-426614174000"
    from forge_pipeline.stages.compile import _uuid

    assert _uuid(None, KEY) == str(derived)
    assert _uuid(None, KEY[::-1]) != str(derived)
    assert _uuid(chosen.upper(), KEY) == chosen


def test_what_cannot_run_here_is_not_verified_and_says_why(model: ONNXModule) -> None:
    elsewhere = "raspberry-pi/5" if Target.from_tag("host").arch == "x86_64" else "x86-64/v2"
    result = run(config(elsewhere, generator="stock", opt_level=1), model, key=KEY)
    assert "this machine is" in result.report["verification"]["skipped"]


def test_sizes_that_were_made_up_are_said_in_a_line(built: Result) -> None:
    (line,) = built.report["notes"]
    assert line.startswith("checked on made-up inputs: ")
    assert "unverified" not in built.output.metadata


@pytest.mark.long
def test_samples_are_what_is_compared_on_where_there_are_any(model: ONNXModule, tmp_path: Path) -> None:
    (shape,) = model.input_shapes
    np.savez(tmp_path / "samples.npz", image=np.ones((4, *shape[1:]), np.float32))
    section = {**defaults("data/npz.yaml"), "path": str(tmp_path / "samples.npz")}
    preparation = {name: value for name, value in section.items() if name not in ("path", "eval_path")}
    data = Dataset.from_config(section).for_calibration()
    result = run(config(data=preparation), model, data, key=KEY)
    first, second = result.report["verification"]["inputs"]
    assert {first["from"], second["from"]} == {"calibration data", "made-up inputs"}
    assert next(row["sizes"] for row in (first, second) if row["from"] == "calibration data") == {shape[0]: 1}


def no_sizes() -> ONNXModule:
    """Return a model that ONNX Runtime takes no inputs for: a reshape that no extent has the elements for."""
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [7, 1009])],
        [numpy_helper.from_array(np.array([7, 1009]), "shape")],
    )
    return ONNXModule(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))


def test_what_no_inputs_are_found_for_is_delivered_and_says_so_in_report_line_and_metadata() -> None:
    result = run(config(), no_sizes(), key=KEY)
    assert result.report["verification"]["samples"] == 0
    assert any(line.startswith("not checked for any size: ONNX Runtime: ") for line in result.report["notes"])
    assert "any size" in result.output.metadata["unverified"]
    canonical_json(dict(result.report))


def test_listed_sizes_reach_the_library(model: ONNXModule) -> None:
    (shape,) = model.input_shapes
    result = run(config(dims={str(shape[0]): [4, 2]}, open_form=False), model, key=KEY)
    assert [row["extents"] for row in result.output.metadata["entries"]] == [{shape[0]: 4}, {shape[0]: 2}]
    assert [row["sizes"] for row in result.report["verification"]["inputs"]] == [{shape[0]: 4}, {shape[0]: 2}]


def test_a_uuid_that_is_none_is_refused_before_anything_is_compiled(model: ONNXModule) -> None:
    with pytest.raises(ConfigError, match=r"compile\.uuid"):
        run(config(uuid="one-two-three"), model, key=KEY)


@pytest.mark.parametrize(("option", "value"), [("opt_level", 5), ("set_channel_layout", "middle"), ("generator", 3)])
def test_a_value_out_of_range_is_refused(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"compile.{option}"):
        config(**{option: value})


def test_a_gpu_target_without_nvcc_is_refused_clearly(
    model: ONNXModule, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(TargetError, match="expected CUDA's compiler, nvcc"):
        run(config("cuda/sm_90"), model, key=KEY)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("tag", ["cuda/sm_75", "cuda/sm_90", "nvidia/jetson-orin-nano"])
def test_a_gpu_target_gets_machine_code_and_the_same_bytes_each_time(tag: str, model: ONNXModule) -> None:
    first, second = (run(config(tag), model, key=KEY).output.to_bytes() for _ in range(2))
    assert first == second
    assert f"-arch {Target.from_tag(tag).cuda_arch}".encode() in first
    assert b"__global__" not in first


@pytest.mark.long
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_a_gpu_that_the_toolkit_has_dropped_is_refused_in_nvccs_words(model: ONNXModule) -> None:
    with pytest.raises(CompileError) as refusal:
        run(config("nvidia/jetson-nano"), model, key=KEY)
    assert "sm_53" in refusal.value.expected
