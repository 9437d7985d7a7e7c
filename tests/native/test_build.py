"""The runtime's build: nothing is built twice, and equal sources give equal bytes wherever they lie."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.native import HERE, RUNTIME, built

FILES = ("forge-run", "libforge.so", "libforge.a")
TLS = 7
"""The kind of a segment with what each thread has a copy of."""


def run(build: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(build), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


def test_what_is_there_is_not_built_again(runtime: Path) -> None:
    before = [(runtime / name).stat().st_mtime_ns for name in FILES]
    done = run(RUNTIME / "build.py", HERE)
    assert (done.returncode, done.stdout.startswith(f"{HERE}: forge-run ")) == (0, True)
    assert [(runtime / name).stat().st_mtime_ns for name in FILES] == before


def test_a_cpu_that_is_not_known_is_refused() -> None:
    done = run(RUNTIME / "build.py", "z80")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        1,
        "error: z80: expected one of x86_64, aarch64, riscv64, aarch64-android, found another",
    )


@pytest.mark.every(9)
@pytest.mark.parametrize("cpu", ["x86_64", "aarch64", "riscv64", "aarch64-android"])
def test_it_is_small(cpu: str) -> None:
    folder = built(cpu)
    assert (folder / "libforge.so").stat().st_size <= 200_000
    assert (folder / "forge-run").stat().st_size <= 350_000


@pytest.mark.long
def test_androids_library_names_its_c_library_and_keeps_no_data_for_threads_in_the_elf_file() -> None:
    """Android's linker looks in no library that is not named, and knows no TLS before API 29."""
    data = (built("aarch64-android") / "libforge.so").read_bytes()
    assert b"\0libc.so\0" in data
    assert b"\0__errno\0" in data
    assert b"__errno_location" not in data
    start, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    assert TLS not in {struct.unpack_from("<I", data, start + size * row)[0] for row in range(count)}


@pytest.mark.long
def test_equal_sources_give_equal_bytes(runtime: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    shutil.copytree(RUNTIME, other, ignore=shutil.ignore_patterns("out"))
    assert run(other / "build.py", HERE).returncode == 0
    for name in FILES:
        assert (other / "out" / HERE / name).read_bytes() == (runtime / name).read_bytes(), name
