"""Models of PyTorch and Keras, made once for all workers, in a process of its own: PyTorch's import takes seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.once import once
from tests.support.paths import SUPPORT


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Return the folder with what make_models.py makes."""

    def make(folder: Path) -> None:
        command = [sys.executable, str(SUPPORT / "frontends/make_models.py")]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    return once(tmp_path_factory, "framework-models", make)
