"""What a remote can be asked for, whatever it is: files by name, whole or not at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import IO, Any, NamedTuple

CHUNK = 1 << 20
WHOLE = 8 << 20  # bytes that are asked for in one request, without a look at the size first

Put = Callable[[bytes], None]
Moved = Callable[[int], None]


class OddError(Exception):
    """What has the name of a file is none of those that a store writes."""


class Entry(NamedTuple):
    """A file: its name below the root, bytes, and when it was written, in seconds since the epoch (0: unknown)."""

    name: str
    size: int
    written: float


class Files(ABC):
    """The files below one URL. Whatever fails raises what the back end raises."""

    @abstractmethod
    def look(self) -> None:
        """Raise FileNotFoundError where the place that holds the files is missing, and what keeps us from it."""

    @abstractmethod
    def read(self, name: str, limit: int, put: Put) -> None:
        """Pass a file to ``put`` in pieces. Raises OddError, and FileNotFoundError where there is none."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Return the length of a file; None without one, and where it cannot be told."""

    @abstractmethod
    def send(self, source: str, name: str, moved: Moved) -> None:
        """Send a file of this machine."""

    @abstractmethod
    def write(self, data: bytes, name: str, moved: Moved) -> None:
        """Send bytes."""

    def names(self, area: str) -> Iterator[list[Entry]]:
        """Yield what lies below ``area``, some at a time. Raises NotImplementedError where that cannot be asked."""
        raise NotImplementedError("its files cannot be listed")

    def remove(self, name: str) -> None:
        """Remove a file; that it has gone already is fine."""
        raise NotImplementedError("its files cannot be removed")

    def claim(self, name: str, data: bytes) -> bool:
        """Write a file that is not there, and say so; of all that try at once, one is told that it did.

        Where a server knows nothing that only one can do, two that try within the same moment may both be told.

        Raises NotImplementedError where the remote cannot do that.
        """
        raise NotImplementedError("its files cannot be claimed")

    def release(self, name: str) -> None:
        """Remove what was claimed."""
        self.remove(name)


class Sink:
    """A file, as far as fsspec asks for one, that passes on what is written to it, in small pieces."""

    def __init__(self, limit: int, put: Put) -> None:
        self._left, self._put = limit, put

    def write(self, data: bytes) -> None:
        """Pass on. Raises OddError beyond the limit."""
        self._left -= len(data)
        if self._left < 0:
            raise OddError
        for start in range(0, len(data), CHUNK):
            self._put(data[start : start + CHUNK])

    def read(self) -> bytes:
        """Return nothing: fsspec asks whether there is this method."""
        return b""

    def tell(self) -> int:
        """Return where fsspec may begin."""
        return 0

    def close(self) -> None:
        """Stay open."""


def copy(stream: IO[bytes], put: Put) -> None:
    """Pass a stream to ``put`` in pieces."""
    while piece := stream.read(CHUNK):
        put(piece)


def progress(moved: Moved) -> Any:
    """Return what tells fsspec's progress to ``moved``."""
    from fsspec.callbacks import Callback

    class Progress(Callback):  # type: ignore[misc]
        def relative_update(self, inc: int = 1) -> None:
            moved(inc)
            super().relative_update(inc)

        def absolute_update(self, value: int) -> None:
            moved(max(0, value - self.value))
            super().absolute_update(value)

    return Progress()


def entry(info: dict[str, Any], root: str) -> Entry:
    """Return what one of fsspec's back ends says about a file."""
    for key in ("LastModified", "mtime", "last_modified", "updated", "modified", "created"):
        when = info.get(key)
        if isinstance(when, str):
            when = datetime.fromisoformat(when)
        if when is not None:
            break
    name = str(info["name"]).removeprefix("/").removeprefix(root.removeprefix("/")).lstrip("/")
    written = when.timestamp() if isinstance(when, datetime) else float(when or 0)
    return Entry(name, int(info.get("size") or 0), written)
