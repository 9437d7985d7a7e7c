"""A file's bytes in memory of this process alone: read once, hashed on the way, while they are in the cache.

Whatever happens to the file meanwhile, what was hashed is what is used. Large pages, where the system has them on
request, take a third of the time: most of it goes into the pages, not into the bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os

from forge_pipeline.errors import ArtifactError

CHUNK = 1 << 20
"""Bytes that are read, or hashed, at a time: they are in the second cache, or not far behind it, when hashed."""

DIGEST = hashlib.sha256().digest_size


class Contents:
    """Memory for at most ``limit`` bytes, which are appended."""

    __slots__ = ("_digest", "_hashed", "_map", "_size")

    def __init__(self, limit: int) -> None:
        # Private: what mmap gives by default are pages of a shared file system, which come in one size.
        try:
            self._map = mmap.mmap(-1, max(limit, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, MemoryError) as error:
            fix = "free some memory, or use a device that has more"
            raise ArtifactError("memory", f"{limit} bytes for the library", str(error), fix) from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without large pages
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self._size = self._hashed = 0
        self._digest = hashlib.sha256()

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Append a copy of ``data``."""
        stop = self._size + len(data)
        self._map[self._size : stop] = data
        self._grow(stop)

    def append_file(self, descriptor: int) -> None:
        """Append what a file holds from its start, up to the limit: less where it was cut off meanwhile."""
        room, first = memoryview(self._map), self._size
        while self._size < len(room):
            stop = min(self._size + CHUNK, len(room))
            count = os.preadv(descriptor, [room[self._size : stop]], self._size - first)
            if not count:
                break
            self._grow(self._size + count)

    def view(self) -> memoryview:
        """Return all that was appended, read-only. It outlives this object, and takes no more appends."""
        return memoryview(self._map).toreadonly()[: self._size]

    def digest(self) -> bytes:
        """Return the SHA-256 of all but the last DIGEST bytes, where a library has its own."""
        return self._digest.digest()

    def _grow(self, size: int) -> None:
        self._size = size
        known = max(self._hashed, size - DIGEST)
        self._digest.update(memoryview(self._map)[self._hashed : known])
        self._hashed = known
