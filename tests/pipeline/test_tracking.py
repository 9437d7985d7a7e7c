"""Builds noted by the real MLflow and the real DVC, and what becomes of a build that cannot be noted."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.errors import ConfigError
from forge_pipeline.pipeline import tracking

pytest.importorskip("mlflow")
pytest.importorskip("dvclive")

pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")  # of MLflow's own queries
PLAIN = ["fold=none", "compile.verify.enabled=false", "evaluate.runner=none", "target=x86-64/v3"]


def _runs(uri: str, experiment: str = "forge-pipeline") -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(experiment)
    return [] if found is None else list(client.search_runs([found.experiment_id]))


@pytest.mark.long
def test_every_job_of_a_sweep_is_a_run_of_mlflow(forge: Any, model: Path, tmp_path: Path) -> None:
    uri, out = f"sqlite:///{tmp_path}/runs.db", tmp_path / "swept"
    options = ["track=mlflow", f"track.uri={uri}", "track.experiment=boards", "compile.opt_level=1,3", "jobs=1"]
    done = forge("run", "-m", f"model.path={model}", f"out={out}", *PLAIN, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tracked    mlflow, experiment boards") == 2
    runs = {run.info.run_name: run for run in _runs(uri, "boards")}
    assert sorted(runs) == [f"x86-64/v3/compile.opt_level={level}" for level in (1, 3)]
    for name, run in runs.items():
        assert run.info.status == "FINISHED"
        assert run.data.params["compile.opt_level"] == name[-1]
        library = out / name / "model_library.so"
        assert run.data.metrics["library_bytes"] == library.stat().st_size
        assert run.data.tags["target"] == "x86-64/v3"


def test_no_secret_reaches_a_tracker(forge: Any, model: Path, tmp_path: Path) -> None:
    database, out = tmp_path / "runs.db", tmp_path / "out"
    with socket.create_server(("127.0.0.1", 0)) as server:  # nobody answers there afterwards
        remote = f"http://user:url-secret@127.0.0.1:{server.getsockname()[1]}/store"
    secrets = {"FORGE_PASSWORD": "pass-in-environment", "MODEL_SECRET": "option-of-remote"}
    done = forge(
        "run", f"model.path={model}", *PLAIN, f"out={out}", "encrypt=password", "encrypt.kdf.memory_kib=19456",
        "track=mlflow", f"track.uri=sqlite:///{database}", f"store.remote={remote}",
        "store.remote_options.secret=${oc.env:MODEL_SECRET}",
        env=secrets,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(_runs(f"sqlite:///{database}")) == 1
    for secret in (*secrets.values(), "url-secret"):
        assert secret.encode() not in database.read_bytes()
        assert secret not in done.stdout + done.stderr


@pytest.mark.parametrize("module", ["mlflow", "dvclive"])
def test_a_tracker_that_nobody_chose_is_not_imported(module: str) -> None:
    script = f"""
import sys
from forge_pipeline.pipeline import tracking
tracking.tracker({{"kind": "none"}})
print({module!r} in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.long
def test_a_server_that_is_away_costs_a_line_or_the_build_where_it_is_required(
    forge: Any, model: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    options = [*PLAIN, "track=mlflow", f"track.uri=http://127.0.0.1:{port}", f"out={tmp_path / 'out'}"]
    done = forge("run", f"model.path={model}", *options)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert line.startswith("warning: not tracked by mlflow: ")
    required = forge("run", f"model.path={model}", *options, "track.required=true")
    assert (required.returncode, "error: track=mlflow: expected a tracker" in required.stderr) == (1, True)
    assert (tmp_path / "out" / "model_library.so").exists()


def test_an_extra_that_is_not_installed_is_named_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'forge-pipeline\[dvclive\]'"):
        tracking.tracker({"kind": "dvclive"})


def _git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def _dvc(folder: Path, *arguments: str) -> str:
    command, environment = [sys.executable, "-m", "dvc", *arguments], {**os.environ, "DVC_NO_ANALYTICS": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout  # fmt: skip


def test_a_build_is_an_experiment_of_dvc(forge: Any, model: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    _git(repository, "init", "-q")
    _dvc(repository, "init", "-q")
    (repository / ".gitignore").write_text(".forge/\nout/\n")
    _git(repository, "add", "-A")
    _git(repository, "commit", "-qm", "first")
    for name, value in (("user.name", "a"), ("user.email", "a@example.org")):
        _git(repository, "config", name, value)
    done = forge("run", f"model.path={model}", "out=out", *PLAIN, "track=dvclive", cwd=repository)
    assert done.returncode == 0, done.stderr
    (branch,) = [
        entry for entry in json.loads(_dvc(repository, "exp", "show", "--json")) if entry["rev"] != "workspace"
    ]
    (experiment,) = branch["experiments"]
    assert f"tracked    dvclive, experiment {experiment['name']}\n" in done.stdout
    (revision,) = experiment["revs"]
    (metrics,) = revision["data"]["metrics"].values()
    (parameters,) = revision["data"]["params"].values()
    assert metrics["data"]["library_bytes"] == (repository / "out" / "model_library.so").stat().st_size
    assert parameters["data"]["compile.opt_level"] == "3"


@pytest.mark.long
def test_without_a_repository_dvclive_saves_no_experiment_and_that_is_said(
    forge: Any, model: Path, tmp_path: Path
) -> None:
    done = forge("run", f"model.path={model}", "out=out", *PLAIN, "track=dvclive", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "warning: not tracked by dvclive: " in done.stderr
    assert "git init" in done.stderr


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Start MLflow's own tracking server, and return its URL."""
    if importlib.util.find_spec("flask") is None:
        pytest.skip("MLflow's server is not installed: make servers")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    mlflow = shutil.which("mlflow", path=str(Path(sys.executable).parent)) or "mlflow"
    command = [mlflow, "server", "--backend-store-uri", f"sqlite:///{tmp_path}/server.db", "--host", "127.0.0.1"]
    with subprocess.Popen(
        [*command, "--port", str(port), "--workers", "1"], cwd=tmp_path, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as running:  # fmt: skip
        try:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            running.terminate()


@pytest.mark.long
def test_a_server_of_mlflow_takes_a_build(forge: Any, model: Path, tmp_path: Path, server: str) -> None:
    options = ["track=mlflow", f"track.uri={server}", "track.required=true", f"out={tmp_path / 'out'}"]
    done = forge("run", f"model.path={model}", *PLAIN, *options)
    assert done.returncode == 0, done.stderr
    (run,) = _runs(server)
    assert run.data.params["quantize.method"] == "none"
