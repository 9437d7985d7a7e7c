"""Content-addressed objects: bytes whose name is their SHA-256, verified whenever they are read."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forge_pipeline.content import Content, FileRange, Made, NotPlainError, OpenFile
from forge_pipeline.digest import CHUNK, digest_bytes, digest_open
from forge_pipeline.store.disk import OBJECTS, Damage, Disk, refusing, write_all
from forge_pipeline.store.locks import locked
from forge_pipeline.store.vault import Plain, Vault

MOVE_OUTPUT = "choose an output that you can write to"
_NO_KERNEL_COPY = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM}
)


class Objects:
    """The objects of one store. Anything that writes raises StoreError where it cannot."""

    def __init__(self, disk: Disk, vault: Vault | None = None) -> None:
        self._disk, self._vault = disk, vault or Plain()
        self._views: dict[str, OpenFile] = {}  # what was asked for of sealed objects, in memory

    def slot(self, digest: str) -> Path:
        """Return where the object's file is, or would be."""
        return self._disk.slot(OBJECTS, digest)

    def has(self, digest: str) -> bool:
        """Say whether something is where the object would be."""
        return self.slot(digest).exists()

    def path(self, digest: str) -> Path | None:
        """Return where the object's bytes can be read, or could: what `slot` gives.

        Of a sealed object it is a file in memory, for as long as this lives; None where it is not sound.
        """
        if not self._vault.seals:
            return self.slot(digest)
        view = self._views.get(digest) or self._view(digest)
        return None if view is None else _path_of(self._views.setdefault(digest, view))

    @contextmanager
    def shown(self, digest: str) -> Iterator[Path | None]:
        """Show the object's bytes as a file, as `path` does, for as long as this is open."""
        if not self._vault.seals:
            yield self.slot(digest)
        else:
            view = self._view(digest)
            yield None if view is None else _path_of(view)

    def _view(self, digest: str) -> OpenFile | None:
        """Open a sealed object in memory; None where it is not sound."""
        try:
            view = OpenFile(self._opened(digest))
        except OSError:
            return None
        return view if digest_open(view.descriptor) == digest else None

    def check(self, digest: str, size: int | None = None) -> Damage | None:
        """Read the object through, in flat memory. None when it is sound; otherwise it is moved to quarantine.

        One of more than ``size`` bytes, where that is known, is not read.
        """
        slot = self.slot(digest)
        if self._fault(slot, digest, size) is None:
            return None
        with refusing(slot), self._disk.naming():
            found = self._fault(slot, digest, size)  # again: another process may have put a sound one in its place
            if found is None:
                return None
            moved = self._disk.set_aside(slot)
        return Damage(path=slot, expected=f"bytes with digest {digest}", found=found, moved_to=moved)

    def put(self, data: Content) -> tuple[str, Damage | None]:
        """Store ``data``; return its digest, and what was wrong with the object that it replaces, if anything.

        What is not in memory is written while it is read, in flat memory.
        """
        if isinstance(data, FileRange | Made):
            return self._put_pieces(data)
        digest = digest_bytes(data)
        damage = self.check(digest, len(data))
        if damage is None:
            return digest, None
        with self._disk.draft() as draft:
            writer = self._vault.writer(draft.write)
            writer.write(data)
            writer.end()
            draft.place(self.slot(digest))
        return digest, damage if damage.moved_to else None

    def _put_pieces(self, data: FileRange | Made) -> tuple[str, Damage | None]:
        hasher = hashlib.sha256()
        with self._disk.draft() as draft:
            writer = self._vault.writer(draft.write)
            for piece in data.pieces():
                hasher.update(piece)
                writer.write(piece)
            writer.end()
            digest = hasher.hexdigest()
            damage = self.check(digest, len(data))
            if damage is None:
                return digest, None
            draft.place(self.slot(digest))
        return digest, damage if damage.moved_to else None

    def read(self, digest: str) -> bytes | None:
        """Return the object's verified bytes; None when there is no sound object (which is left where it is)."""
        try:
            with os.fdopen(self._opened(digest), "rb") as stream:
                data = stream.read()
        except OSError:
            return None  # `check` says what is wrong
        return data if digest_bytes(data) == digest else None

    def export(self, digest: str, destination: Path, *, size: int | None = None, private: bool = False) -> bool:
        """Copy the object to a read-only file, for its owner alone if ``private``, else as the umask says.

        The copy shares the object's blocks where the file system can do that, and no later change of either: it is no
        hard link. False when the object is not sound: ``destination`` is then as it was. It is replaced in one step,
        with the bytes that were verified.
        """
        try:
            source = self._opened(digest)
        except OSError:
            return False
        try:
            if size is not None and os.fstat(source).st_size > size:
                return False
            with refusing(destination, MOVE_OUTPUT):
                destination.parent.mkdir(parents=True, exist_ok=True)
                return _copy(source, digest, destination, 0o600 if private else 0o666)
        finally:
            os.close(source)

    def _opened(self, digest: str) -> int:
        """Open the object's bytes. Raises OSError."""
        return self._vault.plain(self._disk.opened(self.slot(digest)))

    def _fault(self, path: Path, digest: str, size: int | None) -> str | None:
        """Say what is wrong with the file at ``path``; None when its bytes have that digest."""
        try:
            descriptor = self._disk.opened(path)
            length = os.fstat(descriptor).st_size
            if size is not None and length > self._vault.length(size):
                os.close(descriptor)
                return f"{length} bytes, not {self._vault.length(size)}"
            descriptor = self._vault.plain(descriptor)
            try:
                actual = digest_open(descriptor)
            finally:
                os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            return "nothing"
        except NotPlainError as error:
            return error.strerror
        except OSError as error:  # a medium that fails, or a file that somebody locked away
            return f"a file that cannot be read ({error.strerror})"
        return None if actual == digest else f"{length} bytes with digest {actual}"


def _path_of(view: OpenFile) -> Path:
    return Path(f"/proc/{os.getpid()}/fd/{view.descriptor}")


def _copy(source: int, digest: str, destination: Path, mode: int) -> bool:
    # One name per destination, locked: a copy that died is continued from the start, not left for ever.
    partial = destination.with_name(f".{destination.name}.partial")
    with locked(partial, mode=mode) as target:
        os.ftruncate(target, 0)
        _copy_content(source, target)
        if digest_open(target) != digest:
            return False
        os.fsync(target)
        made = os.fstat(target).st_mode
        partial.replace(destination)
        # Last, because a read-only partial file would stop the next process from opening it.
        os.fchmod(target, made & mode & 0o444)
    return True


def _copy_content(source: int, target: int) -> None:
    """Copy a file in the kernel, which shares the blocks where the file system can; else through memory."""
    try:
        while os.copy_file_range(source, target, 1 << 30):
            pass
    except OSError as error:
        if error.errno not in _NO_KERNEL_COPY:
            raise
        while chunk := os.read(source, CHUNK):
            write_all(target, chunk)
