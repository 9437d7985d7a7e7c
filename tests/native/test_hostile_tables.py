"""A table whose digest was mended is refused: its code was not made for it.

Where code takes any, as that of earlier releases does, it runs within its memory: nothing crashes, whatever it says.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
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
def test_changed_words_do_no_harm(checking: Path, runner: Runner, tmp_path: Path, name: str, count: int) -> None:
    data = (checking / f"{name}.so").read_bytes()
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


@pytest.mark.parametrize("name", MODELS)
def test_code_runs_the_table_it_was_made_for_alone(libraries: Path, runner: Runner, tmp_path: Path, name: str) -> None:
    data = (libraries / f"{name}.so").read_bytes()
    program, path = bytes(Library.from_bytes(data).program), tmp_path / "changed.so"
    # two names of kernels change places: tables are sound, and other kernels are called
    first, second = struct.unpack_from("<2q", program, 72)
    changed = program[:72] + struct.pack("<2q", second, first) + program[88:]
    path.write_bytes(mended(data.replace(program, changed)))
    done = runner.start(path)
    assert (done.returncode, "found one that the code was not made for" in done.stderr) == (1, True), done.stderr


def test_a_cut_program_is_refused(checking: Path, runner: Runner, tmp_path: Path) -> None:
    data = (checking / "convolutions.so").read_bytes()
    library = Library.from_bytes(data)
    program = bytes(library.program)
    start, path = data.index(program), tmp_path / "changed.so"
    for size in (0, 8, 63, 64, 72, len(program) // 2):
        cut = data[:start] + program[:size] + bytes(len(program) - size) + data[start + len(program) :]
        path.write_bytes(mended(cut))
        assert not ends_well(runner, path, size)


SEGMENT = struct.Struct("<IIQQQQQQ")
"""Kind, flags, offset, address, physical address, size in the file, size, alignment."""
LOADED, UNWRITTEN, EXECUTABLE = 1, 0x6474E552, 1


def code(kind: int, flags: int) -> bool:
    return kind == LOADED and bool(flags & EXECUTABLE)


@pytest.mark.parametrize(
    ("chosen", "field", "change", "found"),
    [
        (code, 2, -1, "a segment at another place than where it was linked"),
        (code, 2, -4096, "a segment at another place than where it was linked"),
        (code, 5, -64, "code that is not in it"),
        (lambda kind, flags: kind == UNWRITTEN, 3, -4096, "data that stays outside of it"),
    ],
    ids=["a byte before", "a page before", "shorter", "code as data"],
)
def test_code_that_is_read_from_elsewhere_is_refused(
    chosen: Callable[[int, int], bool],
    field: int,
    change: int,
    found: str,
    checking: Path,
    runner: Runner,
    tmp_path: Path,
) -> None:
    data = bytearray((checking / "convolutions.so").read_bytes())
    (first,), (count,) = struct.unpack_from("<Q", data, 0x20), struct.unpack_from("<H", data, 0x38)
    places = [first + SEGMENT.size * number for number in range(count)]
    (place,) = (place for place in places if chosen(*SEGMENT.unpack_from(data, place)[:2]))
    values = list(SEGMENT.unpack_from(data, place))
    values[field] += change
    SEGMENT.pack_into(data, place, *values)
    path = tmp_path / "changed.so"
    path.write_bytes(mended(bytes(data)))
    done = runner.start(path, "--size", "n=2")
    assert (done.returncode, found in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("count", [100, pytest.param(5000, marks=pytest.mark.long)])
def test_changed_headers_of_the_code_do_no_harm(checking: Path, runner: Runner, tmp_path: Path, count: int) -> None:
    """The headers of the ELF part are checked; what its code does is trusted, and so is where its functions begin."""
    data = (checking / "convolutions.so").read_bytes()
    path = tmp_path / "changed.so"
    for seed in range(count):
        choice = random.Random(seed)
        changed = bytearray(data)
        for _ in range(choice.randint(1, 4)):
            changed[choice.randrange(0x200)] = choice.randrange(256)
        path.write_bytes(mended(bytes(changed)))
        ends_well(runner, path, seed)
