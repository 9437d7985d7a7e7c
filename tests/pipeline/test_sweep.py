"""A sweep, with each launcher that is installed: every job runs, and each that failed is named."""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.errors import ForgeError
from forge_pipeline.pipeline.build import build
from forge_pipeline.pipeline.sweep.jobs import Job, below, failure
from forge_pipeline.store import Store
from tests.support.paths import ROOT
from tests.support.tiny import write_model

LAUNCHERS = {
    "parallel": ["hydra/launcher=parallel", "jobs=2"],
    "joblib": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
    "submitit": ["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=5"],
    "ray": ["hydra/launcher=ray"],
}
SLURM = ["hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=5", "hydra.launcher.mem_gb=null"]
COUNT = 12
PLAIN = ["fold=none", "compile.verify.enabled=false", "evaluate.runner=none", "target=x86-64/v3"]
"""A build of a second or two."""


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


@pytest.mark.every(2)
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
    assert done.stdout.count("\ndelivered") == 1


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_of_twelve_jobs_eleven_are_delivered_and_one_is_named(
    forge: Any, model: Path, tmp_path: Path, launcher: str
) -> None:
    _need(launcher)
    models = [tmp_path / f"model{number}.onnx" for number in range(COUNT)]
    for path in models:
        shutil.copy(model, path)
    models[3].write_bytes(b"no model")
    paths = ",".join(map(str, models))
    done = forge("run", "-m", f"model.path={paths}", "target=host", f"out={tmp_path / 'out'}", *LAUNCHERS[launcher])
    assert done.returncode == 1, done.stderr
    assert "1 of 12 that failed" in done.stderr and "model3.onnx" in done.stderr
    assert len(list((tmp_path / "out" / "host").rglob("model_library.so"))) == COUNT - 1


@pytest.mark.long
@pytest.mark.parametrize("launcher", [*LAUNCHERS, "slurm"])
def test_a_sweep_whose_driver_was_killed_builds_only_what_is_missing(launcher: str, tmp_path: Path) -> None:
    _need(launcher)
    models = [write_model(tmp_path / f"model{number}.onnx", seed=number) for number in range(COUNT)]
    models[3].write_bytes(b"no model")
    store, place = tmp_path / "store", {"FORGE_STORE": str(tmp_path / "store"), "PYTHONPATH": str(ROOT)}
    overrides = [f"model.path={','.join(map(str, models))}", f"out={tmp_path / 'out'}", *PLAIN]
    driver = subprocess.Popen(
        [sys.executable, "-m", "forge_pipeline", "run", "-m", *overrides, *LAUNCHERS.get(launcher, SLURM)],
        cwd=tmp_path, env={**os.environ, **place}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    until = time.monotonic() + 300
    while len(_compiled(store)) < 3:
        assert driver.poll() is None and time.monotonic() < until, driver.communicate(timeout=5)[0]
        time.sleep(0.1)
    driver.kill()
    _wait_for_workers(store, driver.pid)
    driver.communicate()
    before, again = _compiled(store), time.time()
    assert len(before) < COUNT - 1, "the driver was killed too late to show anything"
    done = subprocess.run(
        driver.args, cwd=tmp_path, env={**os.environ, **place}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "1 of 12 that failed" in done.stderr) == (1, True), done.stderr
    after = _compiled(store)
    assert len(after) == COUNT - 1
    assert {key for key, when in after.items() if when < again} == set(before), "what was there is not built again"
    assert {key: after[key] for key in before} == before
    assert len(list((tmp_path / "out").rglob("model_library.so"))) == COUNT - 1


def _need(launcher: str) -> None:
    if launcher == "slurm" and (shutil.which("sinfo") is None or subprocess.run(["sinfo"], check=False).returncode):
        pytest.skip("no Slurm runs here")
    extra = "submitit" if launcher == "slurm" else launcher
    if launcher != "parallel" and importlib.util.find_spec(f"hydra_plugins.hydra_{extra}_launcher") is None:
        pytest.skip(f"no {extra} here: pip install 'forge-pipeline[{extra}]'")


def _compiled(folder: Path) -> dict[str, float]:
    """Return when each library in a store was built, by its action key."""
    if not folder.is_dir():
        return {}
    with Store(folder) as store:
        keys = [action.key for action in store.actions() if action.report["stage"] == "compile"]
        return {key: note.when for key in keys if (note := store.note(key)) is not None}


def _wait_for_workers(store: Path, driver: int) -> None:
    """Wait until what a killed driver's launcher has started is done, or end it: some go on with what they have."""

    def working() -> set[int]:
        found = set()
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                if process.name.isdigit() and os.fsencode(f"FORGE_STORE={store}") in (process / "environ").read_bytes():
                    found.add(int(process.name))
        return found - {driver}

    until = time.monotonic() + 10
    while (left := working()) and time.monotonic() < until:
        time.sleep(0.2)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)
