"""Temporary files in memory: none on a disk, none left, whoever is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forge_pipeline import scratch

BEGIN = """
import os, sys, tempfile, time
from pathlib import Path
from forge_pipeline import scratch
scratch.MEMORY = Path(sys.argv[1])
scratch._is_in_memory = lambda folder: folder.is_relative_to(scratch.MEMORY)
scratch.keep_in_memory(lambda line: print("told", line))
with tempfile.NamedTemporaryFile() as file:
    print(file.name, scratch.usual(), flush=True)
"""


@contextmanager
def started(memory: Path, more: str = "") -> Iterator[subprocess.Popen[str]]:
    """Begin in a process of its own, which then does ``more`` and waits for its standard input to end."""
    environment = {name: value for name, value in os.environ.items() if name not in ("TMPDIR", "FORGE_USUAL_TMPDIR")}
    command = [sys.executable, "-c", f"{BEGIN}{more}\nsys.stdin.read()", str(memory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        yield child


def words(child: subprocess.Popen[str]) -> list[str]:
    """Return those of its next line."""
    assert child.stdout is not None
    return child.stdout.readline().split()


def test_temporary_files_are_in_a_folder_for_its_user_alone_and_gone_at_the_end(tmp_path: Path) -> None:
    code = 'print(oct(Path(tempfile.gettempdir()).stat().st_mode), os.environ["TMPDIR"] == tempfile.gettempdir())'
    with started(tmp_path, f"{code}\nsys.stdout.flush()") as child:
        name, usual = words(child)
        assert Path(name).is_relative_to(tmp_path) and not Path(usual).is_relative_to(tmp_path)
        assert words(child) == ["0o40700", "True"]
    assert child.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_was_called_as_a_function_leaves_temporary_files_where_they_were(tmp_path: Path) -> None:
    code = "print([os.environ.get(name) for name in ('TMPDIR', 'FORGE_USUAL_TMPDIR')], tempfile.gettempdir())"
    with started(tmp_path, f"scratch.release()\n{code}\nsys.stdout.flush()") as child:
        _, usual = words(child)
        assert words(child) == ["[None,", "None]", usual]
        assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_next_and_no_other(tmp_path: Path) -> None:
    with started(tmp_path) as alive:
        kept = Path(words(alive)[0]).parent
        with started(tmp_path) as killed:
            left = Path(words(killed)[0]).parent
            killed.kill()
        assert left.exists() and kept.exists()
        with started(tmp_path) as third:
            words(third)
            assert not left.exists() and kept.exists()


def test_no_memory_is_said_with_where_the_files_are(tmp_path: Path) -> None:
    with started(tmp_path / "missing") as child:
        said = " ".join(words(child))
    assert said.startswith("told temporary files of this build, the model among them, lie in clear in ")
    assert said.endswith("is not there, or has less than 256 MiB free; name a folder in memory in TMPDIR")


@pytest.mark.skipif(not Path("/dev/shm").is_mount(), reason="no /dev/shm here")
def test_memory_is_told_from_a_disk(tmp_path: Path) -> None:
    shm = Path("/dev/shm")
    (tmp_path / "link").symlink_to(shm)
    in_memory = [shm, shm / "a" / "folder" / "to be", tmp_path / "link"]
    assert [scratch._is_in_memory(folder) for folder in (*in_memory, Path("/proc/self"))] == [True, True, True, False]
