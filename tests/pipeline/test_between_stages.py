"""What lies between the stages of `dvc repro`: digests in the work tree, the content in the store alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from forge_pipeline.errors import ArtifactError
from forge_pipeline.pipeline.dvc.receipts import identity_path, receipt_path
from forge_pipeline.pipeline.dvc.resolve import resolve
from forge_pipeline.pipeline.dvc.stages import run_stage
from tests.support.disclosed import pieces_in, weights_of
from tests.support.paths import ROOT
from tests.support.tiny import write_model


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository of a small model, which is the current folder, after its stage `load`."""
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    config = yaml.safe_load((tmp_path / "conf" / "config.yaml").read_text())
    config["matrix"] = {"experiment": "own", "targets": ["x86-64/v2"]}
    (tmp_path / "conf" / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    own = {"defaults": [{"override /model": "file"}], "model": {"path": "net.onnx"}}
    (tmp_path / "conf" / "experiment" / "own.yaml").write_text("# @package _global_\n" + yaml.safe_dump(own))
    write_model(tmp_path / "net.onnx")
    monkeypatch.chdir(tmp_path)
    for name in ("FORGE_STORE", "FORGE_STORE_KEY", "FORGE_STORE_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "params.yaml").write_text("{}\n")
    resolve()
    run_stage("load")
    return tmp_path


def test_the_content_is_in_the_store_alone(loaded: Path) -> None:
    run_stage("fold")
    weights = weights_of(loaded / "net.onnx")
    assert pieces_in(loaded / ".forge" / "store", weights)
    assert pieces_in(loaded / "out", weights) == []
    assert {path.name for path in (loaded / "out" / "shared" / "fold").iterdir()} == {
        "fold.action.json", "identity.json", "report.json",
    }  # fmt: skip


def test_what_an_earlier_version_left_in_clear_goes(loaded: Path) -> None:
    left = receipt_path("load").with_name("model.onnx")
    left.write_bytes(b"weights")
    run_stage("load")
    assert not left.exists()


def test_what_the_store_has_lost_is_built_again(loaded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = run_stage("fold").digest()
    shutil.rmtree(loaded / ".forge" / "store")
    capsys.readouterr()
    assert run_stage("fold").digest() == first
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["load", "built"], ["fold", "built"]]


def test_without_a_store_each_stage_builds_those_before_it(loaded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = loaded / "conf" / "config.yaml"
    path.write_text(path.read_text().replace("enabled: true", "enabled: false"))
    shutil.rmtree(loaded / ".forge")
    resolve()
    capsys.readouterr()
    run_stage("fold")
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["load", "built"], ["fold", "built"]]
    assert not (loaded / ".forge").exists()


def test_what_would_be_another_one_now_is_refused(loaded: Path) -> None:
    """The model was exchanged, and its stage not run again, as `dvc repro --single-item` allows."""
    write_model(loaded / "net.onnx", seed=1)
    shutil.rmtree(loaded / ".forge" / "store")
    with pytest.raises(ArtifactError, match="fix: run `dvc repro --force load`") as refusal:
        run_stage("fold")
    assert refusal.value.where == str(identity_path("load"))
    assert not receipt_path("fold").exists()


def _another_key(content: dict[str, object]) -> dict[str, object]:
    return content | {"action_key": "../../escape"}


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("path", "change", "found"),
    [
        (receipt_path("load"), _another_key, "an action key, found none"),
        (receipt_path("load"), lambda content: {}, "an action key, found none"),
        (receipt_path("load"), lambda content: [], "a JSON object, found something else"),
        (identity_path("load"), lambda content: [], "a JSON object, found something else"),
        (identity_path("load"), lambda content: {}, "the digests of what `load` gives, found others"),
        (identity_path("load"), lambda content: {"model.onnx": "0" * 64}, "the digests of what `load` gives"),
        (identity_path("load"), None, "found no such file"),
        (receipt_path("load"), None, "found no such file"),
    ],
)
@pytest.mark.usefixtures("loaded")
def test_a_changed_record_of_an_input_is_refused(
    path: Path, change: Callable[[dict[str, object]], object] | None, found: str
) -> None:
    if change is None:
        path.unlink()
    else:
        changed = change(json.loads(path.read_text()))
        path.unlink()
        path.write_text(json.dumps(changed))
    with pytest.raises(ArtifactError, match=found):
        run_stage("fold")
    assert not receipt_path("fold").exists()
