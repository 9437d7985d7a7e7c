"""A sweep, with each launcher that is installed: every job runs, and each that failed is named."""

from __future__ import annotations

import importlib.util
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.errors import ForgeError
from forge_pipeline.pipeline.build import build
from forge_pipeline.pipeline.sweep import Job, below, failure

LAUNCHERS = {
    "joblib": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
    "submitit": ["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=5"],
    "ray": ["hydra/launcher=ray"],
}
COUNT = 12


@pytest.mark.parametrize(
    ("out", "folder", "expected"),
    [
        ("runs/x86-64/v3", "x86-64/v3/fold=none", "runs/x86-64/v3/fold=none"),
        ("runs/x86-64/v3", "x86-64/v3", "runs/x86-64/v3"),
        ("out", "x86-64/v3/fold=none", "out/x86-64/v3/fold=none"),
        ("out", "", "out"),
    ],
)
def test_the_target_is_in_a_jobs_path_once(out: str, folder: str, expected: str) -> None:
    assert below(Path(out), folder) == Path(expected)


def test_a_job_is_what_a_launcher_can_send_and_so_is_its_failure() -> None:
    job = pickle.loads(pickle.dumps(Job(build, ("fold",))))
    assert (job.task, job.swept) == (build, ("fold",))
    error = pickle.loads(pickle.dumps(ForgeError("host: x", "a", "b", "c")))
    assert "1 of 3 that failed: host: x: expected a, found b" in str(failure(3, [error]))


def test_a_bug_in_a_job_stays_one_and_no_failure_is_none() -> None:
    bug = KeyError("x")
    assert failure(3, [ForgeError("a", "b", "c", "d"), bug]) is bug
    assert failure(3, []) is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["target=glob(zzz*)"], "sweep: expected a job, found none"),
        (["target=host", "hydra/launcher=baisc"], "did you mean 'basic'?"),
    ],
)
def test_a_sweep_without_jobs_or_without_its_launcher_is_refused(
    forge: Any, model: Path, arguments: list[str], said: str
) -> None:
    done = forge("run", "-m", f"model.path={model}", *arguments)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_launcher_that_is_not_installed_names_its_extra(forge: Any, model: Path) -> None:
    if importlib.util.find_spec("hydra_plugins.hydra_ray_launcher") is not None:
        pytest.skip("it is installed here")
    done = forge("run", "-m", f"model.path={model}", "target=host", "hydra/launcher=ray")
    assert "pip install 'forge-pipeline[ray]'" in done.stderr


def test_a_failed_job_is_named_and_the_others_are_delivered(forge: Any, model: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no model")
    done = forge("run", "-m", f"model.path={bad},{model}", "target=host", "store.remote_options.a=hunter2")
    assert done.returncode == 1
    assert "1 of 2 that failed" in done.stderr and "bad.onnx" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout
    assert done.stdout.count("delivered") == 1


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_of_twelve_jobs_eleven_are_delivered_and_one_is_named(
    forge: Any, model: Path, tmp_path: Path, launcher: str
) -> None:
    if importlib.util.find_spec(f"hydra_plugins.hydra_{launcher}_launcher") is None:
        pytest.skip(f"no {launcher} here: pip install 'forge-pipeline[{launcher}]'")
    models = [tmp_path / f"model{number}.onnx" for number in range(COUNT)]
    for path in models:
        shutil.copy(model, path)
    models[3].write_bytes(b"no model")
    paths = ",".join(map(str, models))
    done = forge("run", "-m", f"model.path={paths}", "target=host", f"out={tmp_path / 'out'}", *LAUNCHERS[launcher])
    assert done.returncode == 1, done.stderr
    assert "1 of 12 that failed" in done.stderr and "model3.onnx" in done.stderr
    assert len(list((tmp_path / "out" / "host").rglob("model_library.so"))) == COUNT - 1
