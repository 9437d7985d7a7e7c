"""What is too large to hold in memory: ranges of open files, and bytes that are made while somebody reads them."""

from __future__ import annotations

import io
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from forge_pipeline.errors import ArtifactError

PIECE = 1 << 18  # bytes read at once: a piece stays in the processor's cache until it is used
Buffer = bytes | bytearray | memoryview


class OpenFile:
    """A file that stays open for as long as somebody holds this."""

    __slots__ = ("__weakref__", "descriptor")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def of(cls, path: Path) -> OpenFile:
        """Open ``path`` to read it. Raises OSError."""
        return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    @classmethod
    def temporary(cls) -> OpenFile:
        """Open a new file without a name, to be written and read; it takes disk space where TMPDIR says."""
        with tempfile.TemporaryFile(prefix="forge-") as stream:
            return cls(os.dup(stream.fileno()))

    @property
    def size(self) -> int:
        """The length of the file in bytes, as it is now."""
        return os.fstat(self.descriptor).st_size

    def __repr__(self) -> str:
        return f"OpenFile({self.size} bytes)"


@dataclass(frozen=True, slots=True)
class FileRange:
    """``length`` bytes of an open file, read whenever somebody asks for them."""

    file: OpenFile
    start: int
    length: int

    def __len__(self) -> int:
        return self.length

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes, PIECE at a time. Raises ArtifactError where the file has become shorter."""
        done = 0
        while done < self.length:
            piece = os.pread(self.file.descriptor, min(PIECE, self.length - done), self.start + done)
            if not piece:
                raise _shorter(self.length, done)
            done += len(piece)
            yield piece

    def opened(self) -> io.BufferedIOBase:
        """Return a stream over the bytes."""
        return io.BufferedReader(_RangeStream(self))


class _RangeStream(io.RawIOBase):
    def __init__(self, source: FileRange) -> None:
        self._source, self._position = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.length}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        room = min(len(buffer), max(0, self._source.length - self._position))
        count = os.preadv(self._source.file.descriptor, [buffer[:room]], self._source.start + self._position)
        self._position += count
        return count


@dataclass(frozen=True, slots=True)
class Made:
    """``length`` bytes that ``make`` yields in pieces, the same ones at every call."""

    length: int
    make: Callable[[], Iterable[Buffer]] = field(repr=False)

    def __len__(self) -> int:
        return self.length

    def pieces(self) -> Iterator[Buffer]:
        """Yield the bytes. Raises what making them raises."""
        yield from self.make()


Content = Buffer | FileRange | Made


def pieces(content: Content) -> Iterator[Buffer]:
    """Yield the bytes of any content; those that are in memory as they are, in one piece."""
    if isinstance(content, FileRange | Made):
        yield from content.pieces()
    elif len(content):
        yield content


def in_memory(content: Content) -> Buffer:
    """Return the bytes of any content; those that are in memory are not copied."""
    return b"".join(content.pieces()) if isinstance(content, FileRange | Made) else content


def opened(content: Content) -> io.BufferedIOBase:
    """Return a stream over the bytes of any content; what is made is made whole first."""
    return content.opened() if isinstance(content, FileRange) else io.BytesIO(in_memory(content))


def write(content: Content, descriptor: int) -> None:
    """Append the bytes of any content to a file. Raises OSError."""
    for piece in pieces(content):
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(descriptor, rest) :]


@contextmanager
def writing_temporarily() -> Iterator[None]:
    """Turn an OSError of the body, which writes a temporary file, into an ArtifactError."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(
            where=f"a temporary file in {tempfile.gettempdir()}",
            expected="room for the model's weights",
            found=error.strerror or type(error).__name__,
            fix="free some space, or name a folder on a larger disk in TMPDIR",
        ) from error


def _shorter(expected: int, found: int) -> ArtifactError:
    return ArtifactError(
        where="a file that is being read",
        expected=f"{expected} bytes",
        found=f"an end after {found}: it became shorter",
        fix="run the command again once nothing writes to it",
    )
