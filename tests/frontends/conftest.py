"""Models of PyTorch and Keras, made once for all workers, in a process of its own: PyTorch's import takes seconds."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Return the folder with what make_models.py makes."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base  # what the workers of pytest-xdist have in common
    folder = shared / "framework-models"
    with (shared / "framework-models.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            folder.mkdir(exist_ok=True)
            script = Path(__file__).parent / "make_models.py"
            command = [sys.executable, str(script)]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            (folder / "done").touch()
    return folder
