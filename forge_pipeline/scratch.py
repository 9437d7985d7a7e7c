"""Where temporary files lie: wherever the system keeps them, or in memory where they must not reach a disk."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

MEMORY: Final = Path("/dev/shm")  # noqa: S108  a folder of our own is made in it
LEAST: Final = 256 << 20
"""Bytes that must be free there: a container has 64 MiB unless it was given more."""
_PREFIX: Final = "forge-scratch-"
_IN_MEMORY: Final = ("tmpfs", "ramfs")
_USUAL: Final = "FORGE_USUAL_TMPDIR"
"""Where the system's folder is noted for the processes that this one starts."""


class _Move(NamedTuple):
    place: Path
    owner: int
    """The process whose folder it is: a fork of it removes nothing."""
    before: Mapping[str, str | None]


_moves: Final[list[_Move]] = []


def usual() -> Path:
    """Return the system's folder, also after `keep_in_memory`: what all processes of a user share lies there."""
    return Path(os.environ.get(_USUAL) or tempfile.gettempdir())


def keep_in_memory(tell: Callable[[str], None]) -> None:
    """Put this process's temporary files, and those of its children, into memory, in a folder for its user alone.

    A folder that is in memory already stays. ``tell`` is told where none can be had. The folder is gone with
    `release`, or with the process; what a killed one left is removed here.
    """
    present = Path(tempfile.gettempdir())
    if _is_in_memory(present):
        return
    if not _is_in_memory(MEMORY) or not os.access(MEMORY, os.W_OK | os.X_OK) or shutil.disk_usage(MEMORY).free < LEAST:
        tell(
            f"temporary files of this build, the model among them, lie in clear in {present}: {MEMORY} is not there, "
            f"or has less than {LEAST >> 20} MiB free; name a folder in memory in TMPDIR"
        )
        return
    sweep(_PREFIX, MEMORY)
    place, _ = held(_PREFIX, MEMORY)  # locked as long as this process lives
    _moves.append(_Move(place, os.getpid(), {name: os.environ.get(name) for name in ("TMPDIR", _USUAL)}))
    os.environ.setdefault(_USUAL, str(present))
    os.environ["TMPDIR"] = tempfile.tempdir = str(place)


@atexit.register
def release() -> None:
    """Have temporary files where they were before `keep_in_memory`, and remove its folder: a program's work is done."""
    while _moves:
        move = _moves.pop()
        for name, value in move.before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        tempfile.tempdir = None
        if os.getpid() == move.owner:
            shutil.rmtree(move.place, ignore_errors=True)


def _is_in_memory(folder: Path) -> bool:
    """Say whether a folder is on a file system in memory, going by the mounts that this process sees."""
    found: dict[Path, str] = {}
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(errors="replace").splitlines():
            _, place, kind, *_ = line.split(" ")
            found[Path(place)] = kind
    real = folder.resolve()
    return next((found[part] for part in (real, *real.parents) if part in found), "") in _IN_MEMORY


def held(prefix: str, within: Path) -> tuple[Path, int]:
    """Return a new folder, and the descriptor of its lock: who has that open is alive, and nobody sweeps the folder.

    Where folders cannot be locked nobody sweeps them either. Raises OSError.
    """
    while True:
        place = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            os.rmdir(place)  # noqa: PTH106  needs no open file, where there may be none left
            raise
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if place.exists():  # nobody swept it before it was locked
            return place, descriptor
        os.close(descriptor)


def sweep(prefix: str, within: Path) -> None:
    """Remove the folders that `held` gave to processes of this user that are gone."""
    for place in within.glob(f"{prefix}*"):
        with suppress(OSError):
            if place.lstat().st_uid != os.getuid():
                continue
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place)
            finally:
                os.close(descriptor)
