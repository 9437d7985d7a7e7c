"""A table whose digest was mended is refused, or runs within its memory: nothing crashes, whatever the words say."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from forge_pipeline.runtime.bundle import Library
from tests.support.hostile import ends_well, mutate
from tests.support.native import Runner, mended

MODELS = ("convolutions", "open_sizes", "branches", "sequences")
LOOPS = {
    "sequences": [np.eye(5, 4, dtype=np.float32), np.array([2, 3]), np.array(3), np.array(False)],
}
"""Inputs of models whose data decide sizes. A changed table may ask for turns without end, which the limit ends."""


@pytest.mark.every(2)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [150, pytest.param(5000, marks=pytest.mark.long)])
def test_changed_words_do_no_harm(libraries: Path, runner: Runner, tmp_path: Path, name: str, count: int) -> None:
    data = (libraries / f"{name}.so").read_bytes()
    library, path = Library.from_bytes(data), tmp_path / "changed.so"
    path.write_bytes(data)
    files = [tmp_path / f"{at}.npy" for at in range(len(LOOPS.get(name, ())))]
    for file, array in zip(files, LOOPS.get(name, ()), strict=True):
        np.save(file, array)
    assert ends_well(runner, path, "unchanged", files)
    ran = 0
    for seed in range(count):
        path.write_bytes(mutate(library, data, random.Random(seed)))
        ran += ends_well(runner, path, seed, files)
    assert ran < count / 2


def test_a_cut_program_is_refused(libraries: Path, runner: Runner, tmp_path: Path) -> None:
    data = (libraries / "convolutions.so").read_bytes()
    library = Library.from_bytes(data)
    program = bytes(library.program)
    start, path = data.index(program), tmp_path / "changed.so"
    for size in (0, 8, 63, 64, 72, len(program) // 2):
        cut = data[:start] + program[:size] + bytes(len(program) - size) + data[start + len(program) :]
        path.write_bytes(mended(cut))
        assert not ends_well(runner, path, size)


@pytest.mark.parametrize("count", [100, pytest.param(5000, marks=pytest.mark.long)])
def test_changed_headers_of_the_code_do_no_harm(libraries: Path, runner: Runner, tmp_path: Path, count: int) -> None:
    """The headers of the ELF part are checked; what its code does is trusted, and so is where its functions begin."""
    data = (libraries / "convolutions.so").read_bytes()
    path = tmp_path / "changed.so"
    for seed in range(count):
        choice = random.Random(seed)
        changed = bytearray(data)
        for _ in range(choice.randint(1, 4)):
            changed[choice.randrange(0x200)] = choice.randrange(256)
        path.write_bytes(mended(bytes(changed)))
        ends_well(runner, path, seed)
