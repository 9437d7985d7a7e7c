"""Content-addressed objects: bytes whose name is their SHA-256, verified whenever they are read."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from forge_pipeline.content import Content, FileRange, Made
from forge_pipeline.digest import CHUNK, digest_bytes, digest_file
from forge_pipeline.store.disk import OBJECTS, Damage, Disk, refusing, write_all
from forge_pipeline.store.locks import locked

MOVE_OUTPUT = "choose an output that you can write to"
_NO_LINK = frozenset(
    {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
)


class Objects:
    """The objects of one store. Anything that writes raises StoreError where it cannot."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def path(self, digest: str) -> Path:
        """Return where the object is, or would be."""
        return self._disk.slot(OBJECTS, digest)

    def check(self, digest: str) -> Damage | None:
        """Read the object through, in flat memory. None when it is sound; otherwise it is moved to quarantine."""
        slot = self.path(digest)
        if _fault(slot, digest) is None:
            return None
        with refusing(slot), self._disk.naming():
            found = _fault(slot, digest)  # again: another process may have put a sound one in its place
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
        damage = self.check(digest)
        if damage is None:
            return digest, None
        with self._disk.draft() as draft:
            draft.write(data)
            draft.place(self.path(digest))
        return digest, damage if damage.moved_to else None

    def _put_pieces(self, data: FileRange | Made) -> tuple[str, Damage | None]:
        hasher = hashlib.sha256()
        with self._disk.draft() as draft:
            for piece in data.pieces():
                hasher.update(piece)
                draft.write(piece)
            digest = hasher.hexdigest()
            damage = self.check(digest)
            if damage is None:
                return digest, None
            draft.place(self.path(digest))
        return digest, damage if damage.moved_to else None

    def read(self, digest: str) -> bytes | None:
        """Return the object's verified bytes; None when there is no sound object (which is left where it is)."""
        try:
            data = self.path(digest).read_bytes()
        except OSError:
            return None  # `check` says what is wrong
        return data if digest_bytes(data) == digest else None

    def export(self, digest: str, destination: Path, *, link: bool = True) -> bool:
        """Give the verified object a second name: a hard link where possible and allowed, else a copy, both read-only.

        False when the object is not sound: ``destination`` is then as it was. It is replaced in one step, with the
        bytes that were verified.
        """
        slot = self.path(digest)
        if not slot.is_file():
            return False
        with refusing(destination, MOVE_OUTPUT):
            folder = destination.parent
            folder.mkdir(parents=True, exist_ok=True)
            if link and folder.stat().st_dev == slot.stat().st_dev:
                temporary = self._disk.temporary()  # in the store: nothing is left beside the output after a kill
                try:
                    if _offered(lambda: os.link(slot, temporary)):
                        if _fault(temporary, digest) is not None:
                            return False
                        if _offered(lambda: temporary.replace(destination)):
                            return True
                finally:
                    temporary.unlink(missing_ok=True)  # replace() does nothing between two names of one file
            return _copy(slot, digest, destination)


def _copy(slot: Path, digest: str, destination: Path) -> bool:
    # One name per destination, locked: a copy that died is continued from the start, not left for ever.
    partial = destination.with_name(f".{destination.name}.partial")
    with slot.open("rb") as source, locked(partial) as descriptor:
        os.ftruncate(descriptor, 0)
        hasher = hashlib.sha256()
        while chunk := source.read(CHUNK):
            hasher.update(chunk)
            write_all(descriptor, chunk)
        if hasher.hexdigest() != digest:
            return False
        os.fsync(descriptor)
        partial.replace(destination)
        # Last, because a read-only partial file would stop the next process from opening it.
        os.fchmod(descriptor, stat.S_IMODE(os.fstat(source.fileno()).st_mode))
    return True


def _offered(step: Callable[[], object]) -> bool:
    try:
        step()
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    return True


def _fault(path: Path, digest: str) -> str | None:
    """Say what is wrong with the file at ``path``; None when its bytes have that digest."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return "something that is no plain file"
        actual = digest_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return "nothing"
    except OSError as error:  # a medium that fails, or a file that somebody locked away
        return f"a file that cannot be read ({error.strerror})"
    return None if actual == digest else f"{status.st_size} bytes with digest {actual}"
