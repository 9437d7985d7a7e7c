"""A shared folder: what is in it may be anybody's, so no link is followed and nothing odd is opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import IO

from forge_pipeline.carrier.files import Entry, Files, Moved, OddError, Put, Sink, copy


class Folder(Files):
    """The files of a folder, which is made where the folder that holds it is there."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def look(self) -> None:
        """See `Files`."""
        if not self._root.is_dir():
            os.stat(self._root.parent)  # noqa: PTH116  raises what is wrong

    def read(self, name: str, limit: int, put: Put) -> None:
        """See `Files`."""
        with _regular(self._root / name, limit) as stream:
            copy(stream, Sink(limit, put).write)

    def size(self, name: str) -> int | None:
        """See `Files`."""
        try:
            status = (self._root / name).lstat()
        except OSError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def send(self, source: str, name: str, moved: Moved) -> None:
        """See `Files`."""
        with Path(source).open("rb") as stream:
            self._place(stream, name, moved)

    def write(self, data: bytes, name: str, moved: Moved) -> None:
        """See `Files`."""
        self._place(BytesIO(data), name, moved)

    def names(self, area: str) -> Iterator[list[Entry]]:
        """See `Files`."""
        for place, _, files in os.walk(self._root / area):
            paths = [Path(place, file) for file in files]
            yield [
                Entry(str(path.relative_to(self._root)), status.st_size, status.st_mtime)
                for path in paths
                if stat.S_ISREG((status := path.lstat()).st_mode)
            ]

    def remove(self, name: str) -> None:
        """See `Files`."""
        (self._root / name).unlink(missing_ok=True)

    def claim(self, name: str, data: bytes) -> bool:
        """See `Files`: to make a folder is what one of several can do, on every file system."""
        folder = (self._root / name).parent
        self._make(folder.parent)
        try:
            folder.mkdir()
        except FileExistsError:
            return False
        self.write(data, name, lambda count: None)
        return True

    def release(self, name: str) -> None:
        """See `Files`."""
        self.remove(name)
        with suppress(FileNotFoundError):
            (self._root / name).parent.rmdir()

    def _make(self, folder: Path) -> None:
        """Make a folder below the root, and that; the folder that holds the root is somebody else's."""
        if self._root in (folder, *folder.parents):
            with suppress(FileExistsError):
                self._root.mkdir()
            folder.mkdir(parents=True, exist_ok=True)

    def _place(self, stream: IO[bytes], name: str, moved: Moved) -> None:
        """Write a file beside its place and rename it: no half of one under its name, and no link is followed."""
        path = self._root / name
        self._make(path.parent)
        partial = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
        try:
            with partial.open("xb") as out:

                def put(piece: bytes) -> None:
                    out.write(piece)
                    moved(len(piece))

                copy(stream, put)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def _regular(path: Path, limit: int) -> IO[bytes]:
    """Open a file without waiting for a writer of a pipe, or following a link to what has no end."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OddError
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    status = os.fstat(stream.fileno())  # again: the name may be another's by now
    if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
        stream.close()
        raise OddError
    return stream
