"""A sweep with several jobs at once: the same bytes as one by one, what is shown of it, and what `jobs` may be."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.pipeline.parallel.launch import names_of
from tests.support.paths import ROOT
from tests.support.tiny import write_model

SWEEP = ["target=x86-64/v2,x86-64/v3", "evaluate.latency_runs=3", "jobs=2"]


def _outputs(out: Path) -> dict[str, dict[str, str]]:
    rows = json.loads((out / "manifest.json").read_text())["stages"]
    return {row["stage"]: row["outputs"] for row in rows if row["stage"] != "evaluate"}  # which holds times


@pytest.mark.long
def test_jobs_at_once_give_what_jobs_one_by_one_give(forge: Any, model: Path, tmp_path: Path) -> None:
    def swept(name: str, *more: str) -> str:
        store = {"FORGE_STORE": str(tmp_path / f"store-{name}")}
        done = forge("run", "-m", f"model.path={model}", f"out={tmp_path / name}", *SWEEP, *more, env=store)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    at_once, in_turn = swept("two"), swept("one", "jobs=1")
    for target in ("x86-64/v2", "x86-64/v3"):
        assert _outputs(tmp_path / "two" / target) == _outputs(tmp_path / "one" / target)
    assert re.search(r"2 jobs in [\d.]+ s, 2 at once: 2 delivered, 0 failed", at_once)
    assert len(re.findall(r"^compile +start ", at_once, re.MULTILINE)) == 2
    for stage in ("load", "fold"):
        assert len(re.findall(rf"^{stage} +built ", at_once, re.MULTILINE)) == 1, at_once
    assert "start" not in in_turn


@pytest.mark.long
def test_on_a_terminal_there_is_a_row_for_each_job(tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no model")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "FORGE_STORE": str(tmp_path / "store"), "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, "-m", "forge_pipeline", "run", "-m",
         f"model.path={write_model(tmp_path / 'tiny.onnx')},{bad}", "target=host", f"out={tmp_path / 'out'}", "jobs=2"],
        cwd=tmp_path, env={**environment, "COLUMNS": "200"}, stdout=theirs, stderr=theirs,
    ) as process:  # fmt: skip
        os.close(theirs)
        text = b""
        try:
            while data := os.read(ours, 65536):
                text += data
        except OSError:  # Linux's word for the end of a terminal
            pass
    os.close(ours)
    shown = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", text).decode()
    assert process.returncode == 1, shown
    rows = [line.split() for line in shown.splitlines()]
    last = [row[-1] for row in rows if row and row[0].startswith("model.path=")][-2:]
    assert last == ["delivered", "failed"], shown
    assert any("compile" in row for row in rows), shown
    assert "1 delivered, 1 failed" in shown


@pytest.mark.every(2)
@pytest.mark.parametrize("jobs", ["0", "many"])
def test_a_number_of_jobs_that_is_none_is_refused(forge: Any, model: Path, jobs: str) -> None:
    done = forge("run", "-m", f"model.path={model}", "target=host,x86-64/v2", f"jobs={jobs}")
    assert (done.returncode, done.stderr.startswith("error: jobs: expected a whole number")) == (1, True), done.stderr


def test_a_job_is_named_by_what_it_has_alone() -> None:
    alike = ["model.path=a", "hydra.sweep.dir=x"]
    names = names_of([[*alike, "target=host", "quantize=none"], [*alike, "target=x86-64/v3", "quantize=none"]])
    assert names == ["host", "x86-64/v3"]
    assert names_of([["encrypt.password=a"], ["encrypt.password=b"]])[0] != "encrypt.password=a"
