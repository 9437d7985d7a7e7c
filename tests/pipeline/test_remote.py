"""What leaves the machine for a remote store, and what of its URL is written down or said."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper

from forge_pipeline.pipeline import build as building
from forge_pipeline.pipeline.hydra_app import compose, launch
from forge_pipeline.stages.artifacts import KINDS
from tests.support.tiny import write_model

SECRET = "ftp://me:hunter2@127.0.0.1:1/cache?token=hunter3"
NAMES = (b"inner/conv", b"inner/w", b"GlobalAveragePool")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a classifier whose inner names are easily told from other text."""
    return write_model(tmp_path / "tiny.onnx", prefix="inner/")


def bytes_below(folder: Path) -> bytes:
    return b"\0".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def shown(content: bytes, model: Path, library: Iterable[bytes]) -> set[str]:
    """Say what of a model, and of a compiled library, can be seen in ``content``."""
    weights = [numpy_helper.to_array(tensor).tobytes() for tensor in onnx.load(model).graph.initializer]
    wanted = {"weights": weights, "names": NAMES, "library": library}
    return {what for what, pieces in wanted.items() if any(piece in content for piece in pieces)}


def test_when_encryption_is_asked_for_nothing_in_clear_is_sent_to_a_remote(
    forge: Any, model: Path, tmp_path: Path
) -> None:
    remote, out = tmp_path / "remote", tmp_path / "out"
    environment = {"FORGE_PASSWORD": "correct horse", "FORGE_STORE_REMOTE": f"file://{remote}"}
    done = forge("run", f"model.path={model}", "encrypt=password", f"out={out}", env=environment)
    assert done.returncode == 0, done.stderr
    local = bytes_below(tmp_path / "store")
    (plain,) = {local[start : start + 4096] for start in (local.find(b"\x7fELF"),)}
    library = [plain[64:1024], plain[1024:2048]]
    assert shown(local, model, library) == {"weights", "names", "library"}, "the store here holds all of it"
    sent = bytes_below(remote)
    assert (out / "model_library.so").read_bytes() in sent
    assert shown(sent, model, library) == set()
    records = [path.read_bytes().splitlines()[0] for path in (remote / "actions").rglob("*") if path.is_file()]
    assert [json.loads(record)["report"]["stage"] for record in records] == ["encrypt"]


def test_only_a_sealed_artifact_with_a_key_file_discloses_nothing() -> None:
    everything = {name: b"" for kind in KINDS.values() for name in kind.files}
    assert [name for name, kind in KINDS.items() if not kind.discloses(everything)] == ["sealed"]
    del everything["modelKey.bin"]
    assert all(kind.discloses(everything) for kind in KINDS.values())


def test_a_sweep_leaves_no_file_with_the_remotes_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Any] = []
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)
    launch(
        ["-m", "jobs=1", "target=host", f"store.remote='{SECRET}',null", "fold=none"],
        lambda config, folder: jobs.append((config["store"]["remote"], folder)),
    )
    assert [remote for remote, _ in jobs] == [SECRET, None]
    assert "hunter" not in "".join(str(folder) for _, folder in jobs)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ["store.remot", "store.remote_mode", "target"])
def test_a_refused_override_shows_no_secret_of_a_url(forge: Any, name: str, model: Path) -> None:
    done = forge("run", f"model.path={model}", f"{name}='{SECRET}'")
    assert done.returncode != 0
    assert "hunter" not in done.stderr + done.stdout


def test_a_remote_that_failed_in_one_job_of_a_sweep_is_not_waited_for_in_the_next(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        options = {**compose([])["store"], "path": str(tmp_path / "store"), "remote": url, "remote_answer": 1}
        for _ in range(3):
            with building.open_store(options) as store:
                assert store.lookup("ab" * 32) is None
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.every(10)
@pytest.mark.parametrize("name", ["remote_answer", "remote_rate", "remote_patience"])
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_a_limit_that_is_none_is_refused(name: str, value: float) -> None:
    with (
        pytest.raises(building.ConfigError, match=f"store.{name}: expected a number above 0"),
        building.open_store({**compose([])["store"], name: value}),
    ):
        pass
