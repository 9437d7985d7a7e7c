"""forge-run runs a file of samples in one process: what it writes is what an engine gives for each."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from forge_runtime.engine import Engine
from tests.support.native import Runner

RANDOM = np.random.default_rng(12)


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [RANDOM.standard_normal(shape).astype(np.float32) for shape in shapes]


def write(path: Path, given: Iterable[np.ndarray]) -> Path:
    with path.open("wb") as stream:
        for array in given:
            np.save(stream, array)
    return path


def read(path: Path) -> list[np.ndarray]:
    found = []
    with path.open("rb") as stream:
        while stream.peek(1):
            found.append(np.load(stream))
    return found


@pytest.fixture
def library(libraries: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(libraries / "open_sizes.so", tmp_path / "model_library.so"))


def run(runner: Runner, library: Path, *options: object) -> subprocess.CompletedProcess[str]:
    return runner.start(library, "--samples", "--output", library.parent, "--json", *map(str, options))


def test_each_sample_gives_what_an_engine_gives_whatever_its_size(runner: Runner, library: Path) -> None:
    shapes = [(2, 3, 48), (1, 6, 48), (5, 2, 48), (1, 2, 48)]
    a, b = arrays(*shapes), arrays(*shapes)
    files = [write(library.parent / f"{name}.npy", given) for name, given in (("a", a), ("b", b))]
    done = run(runner, library, f"b={files[1]}", f"a={files[0]}", "--runs", "3")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["samples"], said["runs"], said["least_ms"] > 0) == (4, 3, True)
    found = list(zip(read(library.parent / "out0.npy"), read(library.parent / "out1.npy"), strict=True))
    for outputs, x, y in zip(found, a, b, strict=True):
        for have, want in zip(outputs, Engine(library, threads=1)(x, y), strict=True):
            assert (have.dtype, have.shape, have.tobytes()) == (want.dtype, want.shape, want.tobytes())


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (10_000, "found a file that is cut off"),
        (0, "found one that ends before others"),
        (3, "found another kind of file"),
    ],
)
def test_files_of_other_samples_are_refused(runner: Runner, library: Path, cut: int, said: str) -> None:
    shapes = [(2, 40, 48)] * 3
    a = write(library.parent / "a.npy", arrays(*shapes))
    b = write(library.parent / "b.npy", arrays(*shapes))
    one = b.stat().st_size // 3
    with b.open("r+b") as stream:
        stream.truncate(one + cut)
    done = run(runner, library, a, b)
    assert (done.returncode, said in done.stderr, "\nfix: " in done.stderr) == (1, True, True), done.stderr


def test_every_input_needs_a_file_and_one_sample(runner: Runner, library: Path) -> None:
    a = write(library.parent / "a.npy", arrays((2, 3, 48)))
    assert (done := run(runner, library, a)).returncode == 2
    assert "expected a file for each of 2 inputs, found 1" in done.stderr
    empty = write(library.parent / "b.npy", [])
    done = run(runner, library, empty, empty)
    assert (done.returncode, "at least one array in each file" in done.stderr) == (1, True)


def test_memory_is_of_one_sample(runner: Runner, library: Path) -> None:
    shapes = [(8, 64, 48)] * 200  # 20 MB in each file
    files = [write(library.parent / f"{name}.npy", arrays(*shapes)) for name in "ab"]
    few = [write(library.parent / f"{name}2.npy", arrays(*shapes[:2])) for name in "ab"]
    peaks = [json.loads(run(runner, library, *given).stdout)["peak_kib"] for given in (few, files)]
    assert peaks[1] < peaks[0] + 4096
