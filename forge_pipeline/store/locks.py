"""Locks between processes that the operating system releases when their holder dies, ``kill -9`` included.

They are BSD locks (``flock``) on a file that exists for as long as somebody holds or wants it. A lock belongs to an
open file: it keeps the threads of one process apart too, and programs that the holder starts do not inherit it. The
``filelock`` package offers the same exclusion, but neither shared locks nor a quick import.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forge_pipeline.content import NotPlainError


@contextmanager
def locked(path: Path, *, on_wait: Callable[[], None] = lambda: None, mode: int = 0o600) -> Iterator[int]:
    """Hold ``path`` exclusively, and yield its open descriptor.

    The file is made when missing, with ``mode``, and removed at the end, unless the caller has renamed it meanwhile.
    ``on_wait`` is called once if somebody else holds it. Raises OSError where the file cannot be made or locked, such
    as NotPlainError.
    """
    descriptor = _acquire(path, on_wait, mode)
    try:
        yield descriptor
    finally:
        # Removed while still locked: whoever waits on this file sees that its name is gone, and starts again.
        if _is_named(path, descriptor):
            path.unlink()
        os.close(descriptor)


def _acquire(path: Path, on_wait: Callable[[], None], mode: int) -> int:
    while True:
        descriptor = open_lock(path, mode)
        try:
            if not try_exclusive(descriptor):
                on_wait()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_named(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def open_lock(path: Path, mode: int = 0o600) -> int:
    """Open a plain file that may be locked, made when missing. Raises OSError, such as NotPlainError."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):  # to open a device can do things to it
            raise NotPlainError(path)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlainError(path)
    return descriptor


def try_exclusive(descriptor: int) -> bool:
    """Lock the open file against everybody else if that is possible at once; say whether it was."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def share(descriptor: int) -> None:
    """Lock the open file together with others that share it; waits for an exclusive holder."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def _is_named(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
