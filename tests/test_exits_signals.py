"""What a program of ours leaves behind when a signal ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import os, signal, sys, tempfile, time
from forge_pipeline.exits import guarded

def work():
    with tempfile.TemporaryDirectory(prefix="forge-"):
        print("working", flush=True)
        time.sleep(60)

sys.exit(guarded(work))
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGQUIT"])
def test_a_program_that_a_signal_ends_removes_its_temporary_folders(tmp_path: Path, name: str) -> None:
    number = signal.Signals[name]
    with subprocess.Popen(
        [sys.executable, "-c", CODE], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"working\n"
        assert list(tmp_path.iterdir())
        program.send_signal(number)
        assert program.wait(30) == 128 + number
    assert list(tmp_path.iterdir()) == []
