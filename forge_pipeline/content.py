"""What is too large to hold in memory: ranges of open files, and bytes that are made while somebody reads them."""

from __future__ import annotations

import errno
import io
import os
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from forge_pipeline.errors import ArtifactError, ForgeError

PIECE = 1 << 18  # bytes read at once: a piece stays in the processor's cache until it is used
Buffer = bytes | bytearray | memoryview
State = tuple[int, ...]
_digested: ContextVar[dict[Path, tuple[State, str]] | None] = ContextVar("digested", default=None)


class NotPlainError(OSError):
    """What has the name is no plain file: a pipe, a device, a socket, a folder, or a link where none may be."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "something that is no plain file", str(path))


def open_plain(path: Path, *, follow: bool = True) -> int:
    """Open a plain file to read it, waiting for nobody; a link to one too, to ``follow``. Raises OSError."""
    # Looked at before it is opened, because that does things to some devices, and after, because it may be another.
    if not stat.S_ISREG(path.stat(follow_symlinks=follow).st_mode):
        raise NotPlainError(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlainError(path)
    return descriptor


def open_stream(path: Path) -> BinaryIO:
    """Open a plain file, which is still the one that was digested (``unchanging``). Raises OSError, and ForgeError."""
    stream = os.fdopen(open_plain(path), "rb")
    try:
        check_unchanged(path, stream.fileno())
    except BaseException:
        stream.close()
        raise
    return stream


@contextmanager
def unchanging() -> Iterator[None]:
    """Inside, a file whose digest was taken is to be the same whenever it is opened or digested again.

    A change is a ForgeError with the file's name, from whatever notices it.
    """
    token = _digested.set({})
    try:
        yield
    finally:
        _digested.reset(token)


def state_of(descriptor: int) -> State:
    """Return what changes when a file is exchanged or written to."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def was_digested(path: Path, state: State, digest: str) -> None:
    """Note the digest of a file, and the state that it had before its bytes were read. Raises ForgeError."""
    known = _digested.get()
    if known is not None and known.setdefault(path.absolute(), (state, digest)) != (state, digest):
        raise _changed(path)


def check_unchanged(path: Path, descriptor: int) -> None:
    """Raise ForgeError where the digest of ``path`` was taken, and the file is another one now."""
    known = (_digested.get() or {}).get(path.absolute())
    if known is not None and known[0] != state_of(descriptor):
        raise _changed(path)


def _changed(path: Path) -> ForgeError:
    return ForgeError(
        where=str(path),
        expected="a file that stays as it is while it is read",
        found="other content, or another file in its place",
        fix="run this again once nothing writes to it",
    )


class OpenFile:
    """A file that stays open for as long as somebody holds this; one with a ``path`` is to stay as it is."""

    __slots__ = ("__weakref__", "_path", "_state", "descriptor")

    def __init__(self, descriptor: int, path: Path | None = None) -> None:
        self.descriptor, self._path = descriptor, path
        weakref.finalize(self, os.close, descriptor)
        self._state = state_of(descriptor)

    @classmethod
    def of(cls, path: Path) -> OpenFile:
        """Open the plain file ``path`` to read it. Raises OSError, and ForgeError (see ``unchanging``)."""
        file = cls(open_plain(path), path)
        check_unchanged(path, file.descriptor)
        return file

    @classmethod
    def temporary(cls) -> OpenFile:
        """Open a new file without a name, to be written and read; it takes disk space where TMPDIR says."""
        with tempfile.TemporaryFile(prefix="forge-") as stream:
            return cls(os.dup(stream.fileno()))

    @property
    def size(self) -> int:
        """The length of the file in bytes, as it is now."""
        return os.fstat(self.descriptor).st_size

    def check(self) -> None:
        """Raise ForgeError where the file is to stay as it is, and was written to since it was opened."""
        if self._path is not None and state_of(self.descriptor) != self._state:
            raise _changed(self._path)

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
        """Yield the bytes, PIECE at a time. Raises ForgeError where the file has changed, such as become shorter."""
        done = 0
        while done < self.length:
            piece = os.pread(self.file.descriptor, min(PIECE, self.length - done), self.start + done)
            if not piece:
                raise _shorter(self.length, done)
            done += len(piece)
            yield piece
        self.file.check()

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
