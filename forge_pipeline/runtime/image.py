"""A library in memory: an unnamed file that a dynamic linker can load and that nobody can change any more.

Loading from a path would leave a moment between checking the file and using it, in which it can be replaced or cut
off (a mapped file that shrinks ends its reader with SIGBUS). What is frozen here is what is loaded.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from forge_pipeline.errors import ArtifactError

_serials = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A file that is filled once, frozen, and then mapped and loaded by its ``path``."""

    descriptor: int
    path: str
    seals: int

    def write(self, data: bytes | memoryview) -> None:
        """Append ``data``."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.descriptor, view) :]

    def freeze(self) -> memoryview:
        """Make the contents final and return them, mapped read-only. The mapping outlives the image.

        A mapping of Python's keeps a descriptor of its own, until nothing refers to it any more.
        """
        if self.seals:
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, self.seals)
        if os.fstat(self.descriptor).st_size == 0:
            return memoryview(b"")
        # Private, because before Linux 6.7 a file sealed against writing could not be mapped shared, even to read.
        return memoryview(mmap.mmap(self.descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ))


def open_image(plaintext_folder: Path | None) -> AbstractContextManager[Image]:
    """Give an empty image in memory, or, where a folder is named, a file in a private folder inside it."""
    return _disk_image(plaintext_folder) if plaintext_folder is not None else _memory_image()


@contextmanager
def _memory_image() -> Iterator[Image]:
    if not hasattr(os, "memfd_create"):
        raise ArtifactError(
            "loading",
            "a system that can load a library from memory (memfd, Linux)",
            "one that cannot",
            "name a folder to unpack it into for a moment, not on a network: Engine(..., plaintext_folder=PATH)",
        )
    descriptor = os.memfd_create("forge-model", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        yield Image(descriptor=descriptor, path=_unique_path(descriptor), seals=seals)
    finally:
        os.close(descriptor)


def _unique_path(descriptor: int) -> str:
    """Return a path of the descriptor that was never used before in this process.

    The dynamic linker knows libraries by their path: when a descriptor's number is used again, the second library
    would silently be the first. So a serial number is spelt into the path, in binary, as ``./`` and ``.//``.
    """
    spelt = "".join("./" if bit == "0" else ".//" for bit in f"{next(_serials):b}")
    return f"/proc/self/fd/{spelt}{descriptor}"


@contextmanager
def _disk_image(folder: Path) -> Iterator[Image]:
    with tempfile.TemporaryDirectory(prefix="forge-", dir=folder) as private:  # mode 0700, a new name each time
        path = Path(private) / "model_library.so"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            yield Image(descriptor=descriptor, path=str(path), seals=0)
        finally:
            os.close(descriptor)
