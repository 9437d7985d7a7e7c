"""One folder, several runs: each waits for the one before it, and what is there is always one whole build."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.pipeline.deliver import prepare
from tests.support.paths import ROOT

HOLD = """
import sys
from pathlib import Path
from forge_pipeline.pipeline.deliver import prepare
with prepare(Path(sys.argv[1])):
    print("held", flush=True)
    sys.exit(int(sys.stdin.readline()))
"""


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that works for ``folder`` until it is told its exit status."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with process:
        yield process
        process.kill()


def _told(process: subprocess.Popen[str], status: int) -> None:
    process.communicate(f"{status}\n")
    assert process.returncode == status


@pytest.mark.parametrize("status", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_second_run_waits_for_the_first_and_then_delivers(
    forge: Any, model: Path, tmp_path: Path, status: int
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "forge_pipeline", "run", f"model.path={model}", f"out={out}", "fold=none"]
    environment = {**os.environ, "FORGE_STORE": str(tmp_path / "store"), "PYTHONPATH": str(ROOT)}
    with holder(out) as first:
        second = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment
        )
        assert second.stderr is not None
        assert f"another run delivers to {out}" in second.stderr.readline()
        assert second.poll() is None
        _told(first, status)  # with 1 it takes the folder away, which was its own
    _, said = second.communicate(timeout=300)
    assert second.returncode == 0, said
    assert "manifest.json" in {path.name for path in out.iterdir()}
    assert not [path for path in out.iterdir() if path.name.startswith(".")]


@pytest.mark.long
def test_two_runs_at_once_leave_one_whole_build(model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    environment = {**os.environ, "FORGE_STORE": str(tmp_path / "store"), "PYTHONPATH": str(ROOT)}
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "forge_pipeline", "run", f"model.path={model}", f"data.path={data}", f"out={out}",
             f"quantize={quantize}"],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for quantize in ("none", "static")
    ]  # fmt: skip
    for run in runs:
        _, said = run.communicate(timeout=300)
        assert run.returncode == 0, said
    from forge_pipeline.digest import digest_file

    for row in json.loads((out / "manifest.json").read_text())["stages"]:
        for name, digest in row["outputs"].items():
            if row["stage"] in ("quantize", "encrypt") and (out / name).exists():
                assert digest_file(out / name) == digest, (row["stage"], name)
    assert (out / "model_library.so").exists()


def test_a_run_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    with holder(tmp_path / "out") as first:
        first.send_signal(signal.SIGKILL)
        first.wait()
    waited: list[str] = []
    with prepare(tmp_path / "out", on_wait=lambda: waited.append("waited")):
        pass
    assert waited == []
    assert list((tmp_path / "out").iterdir()) == []


def test_a_run_that_fails_leaves_none_of_the_folders_that_it_made(tmp_path: Path) -> None:
    kept = tmp_path / "runs"
    kept.mkdir()
    with pytest.raises(KeyError), prepare(kept / "host" / "quantize=static"):
        raise KeyError
    assert list(tmp_path.rglob("*")) == [kept]
