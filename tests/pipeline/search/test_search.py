"""Searches of a small model, as users start them: refused, ended, killed and started again, delivered."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.tiny import write_data, write_model

SEARCH = ["-m", "hydra/sweeper=budget", "quantize=static"]
QUICK = [
    "fold=none",
    "compile.verify.enabled=false",
    "evaluate.runner=none",
    "target=x86-64/v3",
    "calibrate.histogram_values=512",
]
"""Trials of two seconds or three."""

VARIED = [
    "quantize.per_channel=true,false",
    "quantize.calib_method=minmax,mse,percentile",
    "quantize.symmetric=false,true",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "tiny.onnx")
    write_data(tmp_path / "samples.npz")
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "FORGE_STORE": str(folder / "store"), "PYTHONPATH": str(ROOT)}


def start(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    given = ["model.path=tiny.onnx", "data.path=samples.npz", *overrides]
    return subprocess.Popen(
        [sys.executable, "-m", "forge_pipeline", "run", *SEARCH, *given], cwd=folder, env=environment(folder),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def search(folder: Path, *overrides: str, code: int = 0) -> str:
    process = start(folder, *overrides)
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == code and "Traceback" not in printed, printed
    return printed


def trials(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted(folder.glob("trials/*/trial.json"))]


@pytest.mark.every(6)
@pytest.mark.parametrize(
    ("override", "said", "code"),
    [
        ("hydra.sweeper.hold=accuracydrop<=1", "did you mean 'accuracy_drop'", 1),
        ("quantize.perchannel=true,false", "did you mean 'quantize.per_channel'", 2),
        ("quantize.calib_method=minmax,most", "quantize.calib_method", 1),
        ("--dry-run", "in which a trial depends on the results", 2),
        ("evaluate.samples=1,2", "something that a search may vary", 2),
    ],
)
def test_what_cannot_be_searched_is_refused_before_any_trial(folder: Path, override: str, said: str, code: int) -> None:
    printed = search(folder, "hydra.sweeper.method=grid", override, code=code)
    assert said in printed
    assert not (folder / "runs").exists() and not (folder / "store").exists()


@pytest.mark.long
@pytest.mark.parametrize("method", ["grid", "random", "tpe", "nsga2"])
def test_a_search_that_was_killed_goes_on_as_if_it_had_not_been(folder: Path, method: str) -> None:
    if method != "grid":
        pytest.importorskip("optuna")
    asked = [
        *QUICK,
        *VARIED,
        f"hydra.sweeper.method={method}",
        "hydra.sweeper.want=[library_kb]",
        "hydra.sweeper.trials=10",
    ]
    driver = start(folder, *asked, "out=killed")
    place, until = folder / "killed/search", time.monotonic() + 500
    while len(trials(place)) < 7:
        assert driver.poll() is None and time.monotonic() < until, driver.communicate(timeout=5)[0]
        time.sleep(0.05)
    driver.kill()
    driver.communicate()
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in place.glob("trials/*/trial.json")}
    assert 7 <= len(before) < 10
    printed = search(folder, *asked, "out=killed")
    assert f"{len(before)} trials are on record" in printed
    assert f"trial {len(before) - 1}:" not in printed.partition("search ended")[0]
    assert f"trial {len(before)}:" in printed
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before} == before
    search(folder, *asked, "out=whole")
    killed, whole = trials(place), trials(folder / "whole/search")
    assert len(killed) == 10
    assert [trial["values"] for trial in killed] == [trial["values"] for trial in whole]
    assert len({json.dumps(trial["values"]) for trial in killed}) == 10
    assert all(trial["built"] == [] for trial in whole), "all of it was built by the search that was killed"
    assert all("load" not in trial["built"] and "calibrate" not in trial["built"] for trial in killed[1:])


@pytest.mark.long
def test_failed_trials_are_on_record_bounds_hold_and_the_choice_is_built_as_an_experiment(folder: Path) -> None:
    varied = ["quantize.keep_float=[],[Conv_0],[conv],[nowhere]", "quantize.per_channel=true,false"]
    asked = [*QUICK[:-1], "target=host,x86-64/v3", "evaluate.max_drop=90", *varied]
    shutil.copytree(ROOT / "conf", folder / "conf")
    wanted = ["hydra.sweeper.want=[model_kb]", "hydra.sweeper.hold=library_kb<=500@host", "out=out", "jobs=2"]
    printed = search(folder, *asked, "hydra.sweeper.method=grid", *wanted, "hydra.sweeper.experiment=chosen")
    done = json.loads((folder / "out/search/results.json").read_bytes())
    failed = [trial for trial in done["trials"] if trial["reason"] is not None]
    assert 2 <= len(failed) < len(done["trials"]) == 8
    assert all("nowhere" in trial["reason"] for trial in failed if "nowhere" in trial["values"]["quantize.keep_float"])
    assert f"{len(failed)} failed" in printed
    fine = {
        trial["number"]: trial["figures"]["host"]["model_kb"] for trial in done["trials"] if trial["reason"] is None
    }
    assert fine[done["best"]] == min(fine.values()) and done["front"] == [done["best"]]
    with (folder / "out/search/trials.csv").open() as table:
        assert [row["holds"] for row in csv.DictReader(table)] == [str(trial["holds"]) for trial in done["trials"]]
    told = json.loads((folder / "out/search/sweep.json").read_bytes())
    assert [failure["job"] for failure in told["failures"]] == [f"trial {trial['number']}" for trial in failed]
    assert len(told["jobs"]) >= 2 * (8 - len(failed))  # a trial delivers for each target
    assert all(job["name"] in (folder / "out/search/sweep.html").read_text() for job in told["jobs"])
    chosen = ["--config-dir", "conf", "experiment=chosen", "target=host", "out=again"]
    again = subprocess.run(
        [sys.executable, "-m", "forge_pipeline", "run", *chosen],
        cwd=folder, env=environment(folder), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert " built " not in again.stdout
    best = folder / "out/search" / done["trials"][done["best"]]["deliveries"]["host"] / "model_library.so"
    assert (folder / "again/model_library.so").read_bytes() == best.read_bytes()


@pytest.mark.long
def test_bounds_that_nothing_holds_enough_and_another_model_end_a_search(folder: Path) -> None:
    asked = [*QUICK, VARIED[0], "hydra.sweeper.method=grid", "hydra.sweeper.want=[library_kb]", "out=out"]
    printed = search(folder, *asked, "hydra.sweeper.hold=library_kb<=1", code=1)
    assert "expected a trial within library_kb<=1" in printed and not (folder / "out/search/best.yaml").exists()
    assert "every configuration was tried" in printed
    printed = search(folder, *asked)
    assert "2 trials are on record" in printed and (folder / "out/search/best.yaml").exists()
    write_model(folder / "tiny.onnx", seed=1)
    assert "another model" in search(folder, *asked, code=2)
    printed = search(folder, *asked[:-1], VARIED[1], "hydra.sweeper.enough=library_kb<=500", "out=new")
    assert "that is enough: library_kb<=500" in printed and len(trials(folder / "new/search")) == 1
    printed = search(folder, *asked[:-1], "hydra.sweeper.hold=latency_ms<=20@raspberry-pi/5", "out=other", code=1)
    assert "latency_ms@raspberry-pi/5: expected a figure that is measured" in printed


@pytest.mark.long
def test_a_signal_ends_a_search_with_all_its_children(folder: Path) -> None:
    driver = start(folder, *QUICK, VARIED[0], "hydra.sweeper.method=grid", "hydra.sweeper.want=[library_kb]", "out=out")
    until = time.monotonic() + 60
    while not (folder / "out/search/results.json").exists():
        assert driver.poll() is None and time.monotonic() < until, driver.communicate(timeout=5)[0]
        time.sleep(0.05)
    driver.send_signal(signal.SIGINT)
    printed, _ = driver.communicate(timeout=60)
    assert driver.returncode == 130 and "Traceback" not in printed, printed
    with pytest.raises(ProcessLookupError):
        os.killpg(driver.pid, 0)


@pytest.mark.long
def test_what_may_be_fastest_is_timed_in_turn_before_it_is_chosen(folder: Path) -> None:
    asked = ["compile.verify.enabled=false", VARIED[0], "hydra.sweeper.method=grid", "out=out"]
    printed = search(folder, *asked, "hydra.sweeper.want=[latency_least_ms]")
    done = json.loads((folder / "out/search/results.json").read_bytes())
    times = {int(number): figures["host"]["latency_least_ms"] for number, figures in done["timed_again"].items()}
    assert 0 in times and times[done["best"]] == min(times.values())
    assert f"timed again, in turn: trials {', '.join(map(str, times))}" in printed
    assert f"latency_least_ms {times[done['best']]:g}" in printed.partition("best:")[2]
