"""What DVC depends on: the slice of `load` names the versions of what reads this kind of model, and of nothing else."""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path

import pytest
import yaml

from forge_pipeline.errors import ConfigError
from forge_pipeline.pipeline.dvc.resolve import resolve
from tests.support.paths import ROOT

MODELS = {
    "tflite": (b"\x1c\x00\x00\x00TFL3" + bytes(64), {"onnx", "tflite"}),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(64), {"onnx", "keras", "torch", "onnxscript"}),
    "onnx": (ROOT / "examples" / "digits" / "digits.onnx", {"onnx"}),
    "absent": (None, {"onnx"}),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", MODELS)
def test_the_slice_of_load_names_the_importers_of_this_kind_of_model(tmp_path: Path, kind: str) -> None:
    content, tools = MODELS[kind]
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    config = yaml.safe_load((tmp_path / "conf" / "config.yaml").read_text())
    config["matrix"] = {"experiment": "own", "targets": ["x86-64/v2"]}
    (tmp_path / "conf" / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    own = {"defaults": [{"override /model": "file"}], "model": {"path": "net.bin"}}
    (tmp_path / "conf" / "experiment" / "own.yaml").write_text("# @package _global_\n" + yaml.safe_dump(own))
    if content is not None:
        (tmp_path / "net.bin").write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    resolve(tmp_path)
    written = yaml.safe_load((tmp_path / "resolved" / "load.yaml").read_text())
    assert written["tools"] == {tool: importlib.metadata.version(tool) for tool in tools}
    assert "tflite" not in (tmp_path / "resolved" / "fold.yaml").read_text()


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "encrypt", [{"password": ["hunter2canary"]}, {"key_ref": "${oc.env:CANARY}"}], ids=["literal", "environment"]
)
def test_a_secret_in_the_configuration_is_refused_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypt: dict[str, object]
) -> None:
    monkeypatch.setenv("CANARY", "hunter2canary")
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    chosen = yaml.safe_load((tmp_path / "conf" / "encrypt" / "password.yaml").read_text())
    (tmp_path / "conf" / "encrypt" / "password.yaml").write_text(yaml.safe_dump(chosen | encrypt))
    with pytest.raises(ConfigError) as refusal:
        resolve(tmp_path)
    assert "hunter2canary" not in str(refusal.value)
    assert not (tmp_path / "resolved").exists()


def test_a_stores_key_in_the_configuration_is_refused_and_its_place_is_written(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    config = yaml.safe_load((tmp_path / "conf" / "config.yaml").read_text())
    for places in (["hunter2canary"], ["file:.forge/key"]):
        config["store"]["key"] = places
        (tmp_path / "conf" / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        if places == ["hunter2canary"]:
            with pytest.raises(ConfigError, match=r"store\.key") as refusal:
                resolve(tmp_path)
            assert "hunter2canary" not in str(refusal.value)
            assert not (tmp_path / "resolved").exists()
    resolve(tmp_path)
    assert yaml.safe_load((tmp_path / "resolved" / "inputs.yaml").read_text())["store"]["key"] == ["file:.forge/key"]


def test_a_remote_in_the_configuration_is_refused_because_what_is_resolved_is_committed(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    config = yaml.safe_load((tmp_path / "conf" / "config.yaml").read_text())
    config["store"]["remote"] = "ftp://me:hunter2@host/cache"
    (tmp_path / "conf" / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    with pytest.raises(ConfigError, match="FORGE_STORE_REMOTE") as refusal:
        resolve(tmp_path)
    assert "hunter2" not in str(refusal.value)
    assert not (tmp_path / "resolved").exists()
