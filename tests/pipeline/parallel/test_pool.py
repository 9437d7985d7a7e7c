"""Jobs in child processes: what fails alone, what is held still, and that nothing is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.pipeline.parallel.processes import tree
from tests.support.paths import ROOT


def _start(scenario: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.pool_jobs", scenario, str(folder)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _results(scenario: str, folder: Path) -> tuple[list[Any], str, str]:
    process = _start(scenario, folder)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads((folder / "results").read_text()), out, err


def test_a_job_that_fails_or_dies_does_not_stop_the_others(tmp_path: Path) -> None:
    results, out, err = _results("mixed", tmp_path)
    pids = {results[number] for number in (0, 3, 5)}
    assert all(isinstance(pid, int) for pid in pids)
    assert "this" in results[1] and "SIGKILL" in results[2] and "job 4: a result that cannot be sent" in results[4]
    assert [f"out {number}" in out and f"err {number}" in err for number in (0, 3, 5)] == [True] * 3
    assert "error in job 2: expected a process that comes to its end" in err


def test_while_something_is_timed_the_others_stand_still_with_all_they_started(tmp_path: Path) -> None:
    (_, (before, begin, end, after)), _, _ = _results("timed", tmp_path)
    assert (begin > before, end - begin, after > end) == (True, 0, True)


def test_jobs_that_begin_alike_wait_for_the_first_of_them(tmp_path: Path) -> None:
    _results("groups", tmp_path)
    order = (tmp_path / "order").read_text().split()
    assert set(order[:2]) == {"a1", "b1"} and order.index("a2") > order.index("a1+")


def test_what_takes_longest_is_begun_first_and_results_keep_their_places(tmp_path: Path) -> None:
    results, _, _ = _results("efforts", tmp_path)
    assert (tmp_path / "order").read_text().split() == ["c", "c+", "b", "b+", "d", "d+", "a", "a+"]
    assert results == ["a", "b", "c", "d"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_child_outlives_the_pool(tmp_path: Path, number: int) -> None:
    process = _start("endless", tmp_path)
    until = time.monotonic() + 60
    while len(children := tree(process.pid)) < 5:
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    # A pool that is killed can end the workers alone: what they started ends itself, as every program of ours does.
    mine = children[:3] if number == signal.SIGKILL else children
    for pid in children[3:] if number == signal.SIGKILL else ():
        os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 10
    while any(map(_runs, mine)):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert (tmp_path / "tidy").exists() == (number != signal.SIGKILL)


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
