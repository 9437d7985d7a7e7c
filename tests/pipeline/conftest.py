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

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.once import once

ROOT = Path(__file__).parent.parent.parent
Forge = Callable[..., subprocess.CompletedProcess[str]]


def write_model(path: Path, *, seed: int = 0, prefix: str = "") -> Path:
    """Write a convolution with batch norm, a pooling and a dense layer: 1x3x12x12 to 5 logits."""
    rng = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.normal(scale=0.3, size=shape).astype(np.float32), prefix + name)

    norm = [
        numpy_helper.from_array(values.astype(np.float32), prefix + name)
        for name, values in {
            "gamma": rng.uniform(0.5, 1.5, 8),
            "beta": rng.normal(size=8),
            "mean": rng.normal(size=8),
            "var": rng.uniform(0.5, 1.5, 8),
        }.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", prefix + "w"], [prefix + "c"], pads=[1, 1, 1, 1], name=prefix + "conv"),
        helper.make_node("BatchNormalization", [prefix + "c", *(item.name for item in norm)], [prefix + "n"]),
        helper.make_node("Relu", [prefix + "n"], [prefix + "r"]),
        helper.make_node("GlobalAveragePool", [prefix + "r"], [prefix + "p"]),
        helper.make_node("Flatten", [prefix + "p"], [prefix + "f"]),
        helper.make_node("Gemm", [prefix + "f", prefix + "d"], ["logits"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 12, 12])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 5])],
        [weight("w", 8, 3, 3, 3), weight("d", 5, 8), *norm],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a small classifier."""
    return write_model(tmp_path / "tiny.onnx")


def write_data(path: Path) -> Path:
    """Write 24 labelled samples for it."""
    rng = np.random.default_rng(7)
    np.savez(path, x=rng.normal(size=(24, 3, 12, 12)).astype(np.float32), y=rng.integers(0, 5, size=24))
    return path


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
