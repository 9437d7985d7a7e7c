"""A small real model with data, and the command line as users start it: a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.once import once
from tests.support.paths import ROOT
from tests.support.tiny import write_data, write_model

Forge = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a small classifier."""
    return write_model(tmp_path / "tiny.onnx")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return 24 labelled samples for it."""
    return write_data(tmp_path / "samples.npz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A finished run of `model` and `data` with quantize=static: its folder, its store, and how long it took."""

    out: Path
    store: Path
    seconds: float


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return a build that was made once for all workers, for tests of what comes after a first run."""

    def make(folder: Path) -> None:
        model, data = write_model(folder / "tiny.onnx"), write_data(folder / "samples.npz")
        command = [sys.executable, "-m", "forge_pipeline", "run", f"model.path={model}", f"data.path={data}"]
        environment = {**os.environ, "FORGE_STORE": str(folder / "store"), "PYTHONPATH": str(ROOT)}
        start = time.monotonic()
        done = subprocess.run(
            [*command, "quantize=static", f"out={folder / 'out'}"],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        (folder / "seconds").write_text(str(time.monotonic() - start))

    folder = once(tmp_path_factory, "finished-build", make)
    return Build(out=folder / "out", store=folder / "store", seconds=float((folder / "seconds").read_text()))


@pytest.fixture
def warm(finished: Build, tmp_path: Path) -> Build:
    """Return that build, with a copy of its store where `forge` has its own: a first run of the same is all hits."""
    shutil.copytree(finished.store, tmp_path / "store")
    return finished


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    """Return a function that runs the command line in a folder of its own, with a store of its own."""
    work = tmp_path / "work"
    work.mkdir()

    def run(*arguments: str, env: dict[str, str] | None = None, cwd: Path = work) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "forge_pipeline", *arguments],
            cwd=cwd,
            env={**os.environ, "FORGE_STORE": str(tmp_path / "store"), "PYTHONPATH": str(ROOT), **(env or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


@pytest.fixture
def rename_inner() -> Callable[[Path], Path]:
    """Return a function that writes the same model with other inner names and another producer."""

    def rename(path: Path) -> Path:
        return write_model(path.with_name("renamed.onnx"), prefix="other/")

    return rename
