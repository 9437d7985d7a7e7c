"""The store's folder: names that appear whole or not at all, and one place where damage is put aside.

objects/ab/cdef...      a file, named by the SHA-256 of its bytes
actions/v1/ab/cdef...   a record, named by its action key
withheld/ab/cdef...     an empty file, named by the key of an action that is not to leave this machine
kernels/v1/ab/cdef...   machine code, named by the digest of what it is made of
notes/ab/cdef...        what is said of an action to people, named by its key
quarantine/             what was found damaged, kept for people until the next collection
key                     of a sealed store: what its key is known by
tmp/  locks/  session   files under construction, one lock per key being built, who has the store open

All of it is for its owner alone, whatever the umask. A store that its user may only read is open for reading.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from forge_pipeline.content import NotPlainError, open_plain
from forge_pipeline.errors import ConfigError, StoreError
from forge_pipeline.store.locks import locked, open_lock, share, try_exclusive
from forge_pipeline.store.vault import Vault

T = TypeVar("T")

OBJECTS = "objects"
ACTIONS = "actions/v1"  # another record format gets another folder, so that two versions can share one store
WITHHELD = "withheld"
NOTES = "notes"
KERNELS = "kernels/v1"
_FOLDERS = ("quarantine", OBJECTS, "actions", ACTIONS, "kernels", KERNELS, WITHHELD, NOTES, "tmp", "locks")
MOVE_STORE = "name a folder that you can write to in FORGE_STORE"
MAX_RECORD = 16 << 20
"""Bytes of a record; what is larger is none."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_UNWRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
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

    def restart(self) -> None:
        """Drop what was written. Raises StoreError."""
        with refusing(self._path):
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)

    def place(self, slot: Path, *, lasting: bool = True) -> None:
        """Give the finished file its name, durably unless it need not be ``lasting``. Raises StoreError."""
        with refusing(slot):
            if lasting:
                os.fsync(self._descriptor)
            with self._disk.naming():
                if self._disk.folder(slot.parent) and lasting:
                    _sync_folder(slot.parent.parent)
                self._path.replace(slot)
                if lasting:
                    _sync_folder(slot.parent)

    def place_first(self, slot: Path) -> None:
        """Give the finished file its name, durably, unless another has it. Raises StoreError."""
        with refusing(slot), suppress(FileExistsError):
            os.fsync(self._descriptor)
            slot.hardlink_to(self._path)
            _sync_folder(slot.parent)


class Disk:
    """One open store folder. Raises StoreError where it cannot be made, read or written.

    Everybody who has the store open shares the lock of ``session``; whoever gets it alone knows that every file in
    ``tmp`` and ``locks`` was left by a process that died.
    """

    def __init__(self, root: Path, on_damage: Callable[[str], None] = lambda line: None) -> None:
        self.root = root.absolute()  # the working folder may change under a long run
        self._on_damage = on_damage
        self._tmp, self._locks, self._quarantine = (self.root / name for name in ("tmp", "locks", "quarantine"))
        self.read_only: str | None = None  # why, where it is
        session = self.root / "session"
        with refusing(self.root):
            try:
                self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
                for name in _FOLDERS:
                    self.folder(self.root / name)
                self._session: int | None = self._lock_file(session, lambda: open_lock(session))
            except OSError as error:
                if error.errno not in _UNWRITABLE or not os.access(self.root, os.R_OK | os.X_OK):
                    raise
                self.read_only = error.strerror
                self._session = _try_open(session)
            self._finalizer = weakref.finalize(self, _close, self._session)
            if self.read_only is None and self._session is not None and try_exclusive(self._session):
                self._sweep()
                self._mark()
            if self._session is not None:
                share(self._session)

    def claim(self, vault: Vault) -> None:
        """See that the store is one of this vault's; a new one becomes it. Raises ConfigError."""
        place = self.root / "key"
        if vault.seals and not os.path.lexists(place) and not self.digests(OBJECTS) and self.read_only is None:
            with self.draft() as draft:
                draft.write(vault.mark())
                draft.place_first(place)
        with refusing(place):
            mark = b""
            if os.path.lexists(place):
                with os.fdopen(open_plain(place, follow=False), "rb") as stream:
                    mark = stream.read(MAX_RECORD)
        if not vault.admits(mark):
            expected, found = "the key that it is sealed with", "another" if vault.seals else "none"
            if not mark:
                expected, found = "no key, as it is not sealed", "one"
            raise ConfigError(
                where=f"store {self.root}",
                expected=expected,
                found=found,
                fix="name the key's place in store.key or FORGE_STORE_KEY, or another folder in FORGE_STORE",
            )

    def close(self) -> None:
        """Leave the store to others."""
        self._finalizer()

    def slot(self, area: str, digest: str) -> Path:
        """Return where the file of ``digest`` is, or would be."""
        return self.root / area / fan_out(digest)

    def digests(self, area: str) -> list[str]:
        """Return what an area holds, sorted; foreign files are none of ours."""
        with refusing(self.root / area):
            return sorted(found for name in _list_folder(self.root / area) for found in self._digests_in(area, name))

    def _digests_in(self, area: str, name: str) -> list[str]:
        if len(name) != 2:
            return []
        return [name + rest for rest in _list_folder(self.root / area / name) if is_digest(name + rest)]

    def opened(self, slot: Path) -> int:
        """Open an object or a record to read it. Raises OSError, such as NotPlainError.

        Where the store is another user's, that its modes keep a file from this one is a StoreError: it is no damage.
        """
        try:
            return open_plain(slot, follow=False)
        except PermissionError:
            if self.read_only is None:
                raise
            with refusing(slot):
                raise

    def folder(self, path: Path) -> bool:
        """Make a folder where there is none, and say so. What else has the name is told, and moved to quarantine."""
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            if path.is_dir():
                return False
            with self._mending():
                if not path.is_dir():
                    self._tell(path, "a folder", "something else")
                    path.mkdir(mode=0o700, exist_ok=True)
        return True

    def _lock_file(self, path: Path, attempt: Callable[[], T]) -> T:
        """Return what ``attempt`` on a lock file gives; what is no file there is told, and moved to quarantine."""
        try:
            return attempt()
        except NotPlainError:
            with self._mending(), suppress(FileNotFoundError):
                if not stat.S_ISREG(path.lstat().st_mode):
                    self._tell(path, "a plain file", "something that is no plain file")
            return attempt()

    @contextmanager
    def _mending(self) -> Iterator[None]:
        """Keep out others that would move the same thing, and then what this one put in its place."""
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _tell(self, path: Path, expected: str, found: str) -> None:
        damage = Damage(path=path, expected=expected, found=found, moved_to=self.set_aside(path))
        self._on_damage(f"damaged in the store: {damage}")

    def _writable(self) -> int:
        """Return the session's open file. Raises StoreError where the store can only be read."""
        if self.read_only is not None or self._session is None:
            raise StoreError(
                where=str(self.root),
                expected="a store that can be written",
                found=f"one that can only be read ({self.read_only})",
                fix=MOVE_STORE,
            )
        return self._session

    @contextmanager
    def draft(self) -> Iterator[Draft]:
        """Open a new file, which is gone at the end unless it was placed."""
        self._writable()
        path = self._tmp / os.urandom(12).hex()
        with refusing(path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
        try:
            yield Draft(self, path, descriptor)
        finally:
            os.close(descriptor)
            path.unlink(missing_ok=True)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Hold still every name under ``objects`` and ``actions``: nothing else may change one meanwhile."""
        with ExitStack() as held:
            if self.read_only is None:
                naming = self._locks / "naming"
                self._lock_file(naming, lambda: held.enter_context(locked(naming)))
            yield

    @contextmanager
    def building(self, key: str, on_wait: Callable[[], None]) -> Iterator[None]:
        """Be the only process, and thread, that builds ``key``. Raises StoreError where nothing can be kept."""
        path = self._locks / fan_out(key).replace("/", "")
        self._writable()
        with ExitStack() as held:
            with refusing(path):  # the body's own errors are none of the store's
                self._lock_file(path, lambda: held.enter_context(locked(path, on_wait=on_wait)))
            yield

    def set_aside(self, slot: Path) -> Path | None:
        """Move damage out of the way, within ``naming``; None when nothing is there, or nothing can be moved."""
        if self.read_only is not None:
            return None
        moved = self._quarantine / f"{slot.relative_to(self.root).as_posix().replace('/', '-')}.{os.urandom(4).hex()}"
        try:
            if slot == self._quarantine:  # it makes room for itself
                slot = slot.rename(moved.parent.with_name(moved.name))
                self._quarantine.mkdir(mode=0o700, exist_ok=True)  # who opens the store may have made it meanwhile
            slot.rename(moved)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return moved

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep everybody else out. Raises StoreError, at once, when somebody else has the store open."""
        session = self._writable()
        with refusing(self.root):
            alone = try_exclusive(session)
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
            share(session)  # also after a refusal: a failed change of lock drops the one that was held

    def clear_quarantine(self) -> int:
        """Remove for good what was put aside; return its bytes."""
        with refusing(self._quarantine):
            return sum(_remove(path) for path in list(self._quarantine.iterdir()))

    def remove(self, slot: Path) -> int:
        """Remove a file, while ``alone``; return its bytes."""
        with refusing(slot):
            return _remove(slot)

    def _mark(self) -> None:
        with suppress(FileExistsError):
            tag = os.open(self.root / "CACHEDIR.TAG", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                write_all(tag, _CACHE_TAG)
            finally:
                os.close(tag)

    def _sweep(self) -> None:
        for folder in (self._tmp, self._locks):
            for path in list(folder.iterdir()):
                _remove(path)


def write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    """Write every byte: one call to the system may take fewer, and never takes more than 2 GiB."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _try_open(path: Path) -> int | None:
    with suppress(OSError):
        return open_plain(path, follow=False)
    return None


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _list_folder(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


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
