"""The store's folder: names that appear whole or not at all, and one place where damage is put aside.

objects/ab/cdef...      a file, named by the SHA-256 of its bytes
actions/v1/ab/cdef...   a record, named by its action key
quarantine/             what was found damaged, kept for people until the next collection
tmp/  locks/  session   files under construction, one lock per key being built, who has the store open
"""

from __future__ import annotations

import errno
import os
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from forge_pipeline.errors import StoreError
from forge_pipeline.store.locks import locked, share, try_exclusive

OBJECTS = "objects"
ACTIONS = "actions/v1"  # another record format gets another folder, so that two versions can share one store
MOVE_STORE = "name a folder that you can write to in FORGE_STORE"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DIGEST = re.compile(r"[0-9a-f]{64}")
# https://bford.info/cachedir: backup programs leave such folders out.
_CACHE_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# This folder is a build cache of forge_pipeline.\n"


@contextmanager
def refusing(where: Path, remedy: str = MOVE_STORE) -> Iterator[None]:
    """Turn an OSError of the body into a StoreError about ``where``."""
    try:
        yield
    except OSError as error:
        full = error.errno in _FULL
        raise StoreError(
            where=str(where),
            expected="room to write" if full else "a file or folder to read and write",
            found=f"an error: {error.strerror or error}",
            fix=f"free some space, run `forge-pipeline store gc`, or {remedy}" if full else remedy,
        ) from error


def is_digest(text: str) -> bool:
    """Say whether ``text`` is a SHA-256 as this project writes it: 64 lower-case hexadecimal digits."""
    return _DIGEST.fullmatch(text) is not None


def fan_out(digest: str) -> str:
    """Return ``ab/cdef...``; ValueError when it is no digest, so that no other name becomes a path."""
    if not is_digest(digest):
        raise ValueError(f"{digest!r} is not a digest of 64 hexadecimal digits")
    return f"{digest[:2]}/{digest[2:]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Something in the store that was not what it should be. ``moved_to`` is None where nothing was left to move."""

    path: Path
    expected: str
    found: str
    moved_to: Path | None

    def __str__(self) -> str:
        moved = f"; moved to {self.moved_to}" if self.moved_to else ""
        return f"{self.path}: expected {self.expected}, found {self.found}{moved}"


class Draft:
    """A file under construction, which no reader can see before it is placed."""

    def __init__(self, disk: Disk, path: Path, descriptor: int) -> None:
        self._disk, self._path, self._descriptor = disk, path, descriptor

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append ``data``. Raises StoreError, such as on a full disk."""
        with refusing(self._path):
            write_all(self._descriptor, data)

    def place(self, slot: Path) -> None:
        """Give the finished file its name, durably. Raises StoreError."""
        with refusing(slot):
            os.fsync(self._descriptor)
            with self._disk.naming():
                try:
                    slot.parent.mkdir()
                except FileExistsError:
                    pass
                else:
                    _sync_folder(slot.parent.parent)
                self._path.replace(slot)
                _sync_folder(slot.parent)


class Disk:
    """One open store folder. Raises StoreError where it cannot be made, read or written.

    Everybody who has the store open shares the lock of ``session``; whoever gets it alone knows that every file in
    ``tmp`` and ``locks`` was left by a process that died.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()  # the working folder may change under a long run
        self._tmp, self._locks, self._quarantine = (self.root / name for name in ("tmp", "locks", "quarantine"))
        for folder in (self.root / OBJECTS, self.root / ACTIONS, self._tmp, self._locks, self._quarantine):
            with refusing(folder):
                folder.mkdir(parents=True, exist_ok=True)
        session = self.root / "session"
        with refusing(session):
            self._session = os.open(session, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._finalizer = weakref.finalize(self, os.close, self._session)
            if try_exclusive(self._session):
                self._sweep()
                tag = self.root / "CACHEDIR.TAG"
                if not tag.exists():
                    tag.write_bytes(_CACHE_TAG)
            share(self._session)

    def close(self) -> None:
        """Leave the store to others."""
        self._finalizer()

    def slot(self, area: str, digest: str) -> Path:
        """Return where the file of ``digest`` is, or would be."""
        return self.root / area / fan_out(digest)

    def digests(self, area: str) -> list[str]:
        """Return what an area holds, sorted; foreign files are none of ours."""
        with refusing(self.root / area):
            found = (path.parent.name + path.name for path in (self.root / area).glob("??/*"))
            return sorted(digest for digest in found if is_digest(digest))

    @contextmanager
    def draft(self) -> Iterator[Draft]:
        """Open a new file, which is gone at the end unless it was placed."""
        path = self.temporary()
        with refusing(path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
        try:
            yield Draft(self, path, descriptor)
        finally:
            os.close(descriptor)
            path.unlink(missing_ok=True)

    def temporary(self) -> Path:
        """Return an unused name, of a file that is swept should this process die."""
        return self._tmp / os.urandom(12).hex()

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Hold still every name under ``objects`` and ``actions``: nothing else may change one meanwhile."""
        with locked(self._locks / "naming"):
            yield

    @contextmanager
    def building(self, key: str, on_wait: Callable[[], None]) -> Iterator[None]:
        """Be the only process, and thread, that builds ``key``."""
        path = self._locks / fan_out(key).replace("/", "")
        with ExitStack() as held:
            with refusing(path):  # the body's own errors are none of the store's
                held.enter_context(locked(path, on_wait=on_wait))
            yield

    def set_aside(self, slot: Path) -> Path | None:
        """Move damage out of the way, within ``naming``; None when nothing is there."""
        moved = self._quarantine / f"{slot.relative_to(self.root).as_posix().replace('/', '-')}.{os.urandom(4).hex()}"
        try:
            slot.rename(moved)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return moved

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep everybody else out. Raises StoreError, at once, when somebody else has the store open."""
        with refusing(self.root):
            alone = try_exclusive(self._session)
        try:
            if not alone:
                raise StoreError(
                    where=str(self.root),
                    expected="a store that nobody else has open",
                    found="a build, or another command, that is using it",
                    fix="run this again when the builds are done",
                )
            with refusing(self.root):
                self._sweep()
            yield
        finally:
            share(self._session)  # also after a refusal: a failed change of lock drops the one that was held

    def clear_quarantine(self) -> int:
        """Remove for good what was put aside; return its bytes."""
        with refusing(self._quarantine):
            return sum(_remove(path) for path in list(self._quarantine.iterdir()))

    def remove(self, slot: Path) -> int:
        """Remove a file, while ``alone``; return its bytes."""
        with refusing(slot):
            return _remove(slot)

    def _sweep(self) -> None:
        for folder in (self._tmp, self._locks):
            for path in list(folder.iterdir()):
                _remove(path)


def write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    """Write every byte: one call to the system may take fewer, and never takes more than 2 GiB."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _remove(path: Path) -> int:
    if path.is_dir() and not path.is_symlink():
        freed = sum(_remove(child) for child in list(path.iterdir()))
        path.rmdir()
        return freed
    size = path.lstat().st_size
    path.unlink()
    return size


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot sync a folder, and need not
            raise
    finally:
        os.close(descriptor)
