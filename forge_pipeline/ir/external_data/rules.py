"""External data: the content of tensors in files beside the model, and what such a reference may not do.

A reference comes from whoever made the model. It may name a plain file inside the model's folder and nothing else:
no absolute path, no ``..``, no link of either kind on the way, no device, no folder, nothing that is mostly a hole,
any number of bytes for none. Files are opened component by component without following links, so that nothing can be
exchanged between the check and the use.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forge_pipeline.content import check_unchanged, state_of, was_digested
from forge_pipeline.digest import digest_open
from forge_pipeline.errors import ModelError

_SMALL = 1 << 20  # bytes that may be a hole
_HOLES = 16  # a larger file may have this many times as many bytes as it has on the disk
_EXTENTS = 1 << 16


@contextmanager
def opened(folder: Path, location: str) -> Iterator[int]:
    """Open the file that ``location`` names inside ``folder``; give a file descriptor. Raises ModelError."""
    parts = location.split("/")
    if location.startswith("/") or "\0" in location or "\\" in location or not parts:
        raise _refused(location, "an absolute path or one with forbidden characters")
    if any(part in ("", ".", "..") for part in parts):
        raise _refused(location, "a path with empty, `.` or `..` parts")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for index, part in enumerate(parts):
            kind = os.O_NONBLOCK if index == len(parts) - 1 else os.O_DIRECTORY
            try:
                inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=descriptor)
            except OSError as error:
                raise _refused(location, error.strerror or "what cannot be opened") from error
            os.close(descriptor)
            descriptor = inner
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _refused(location, "something that is not a plain file")
        if status.st_nlink != 1:
            raise _refused(location, f"a file with {status.st_nlink} hard links")
        if status.st_size > _SMALL and _written(descriptor, status.st_size) < status.st_size // _HOLES:
            raise _refused(location, f"{status.st_size} bytes that are mostly a hole")
        check_unchanged(folder / location, descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def _written(descriptor: int, length: int) -> int:
    """Return how many bytes of a file are no holes; all where the file system does not say."""
    total = position = 0
    try:
        for _ in range(_EXTENTS):
            begin = os.lseek(descriptor, position, os.SEEK_DATA)
            position = os.lseek(descriptor, begin, os.SEEK_HOLE)
            total += position - begin
            if position >= length:
                break
        else:
            total = length
    except OSError as error:
        if error.errno != errno.ENXIO:  # else it is a hole up to the end
            raise
    finally:
        os.lseek(descriptor, 0, os.SEEK_SET)
    return total


def digest(folder: Path, location: str) -> str:
    """Return the SHA-256 of an external file, read in pieces. Raises ModelError."""
    with opened(folder, location) as descriptor:
        state, found = state_of(descriptor), digest_open(descriptor)
    was_digested(folder / location, state, found)
    return found


def _refused(location: str, found: str) -> ModelError:
    return ModelError(
        where=f"external data {location[:200]!r}",
        expected="the name of a plain file inside the model's folder, not a link",
        found=found,
        fix="copy the model again together with its data files, or save it with its weights inside",
    )
