"""What files on a server have in common, be they in folders or in a bucket: fsspec reads, measures and removes them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from forge_pipeline.carrier.files import WHOLE, Files, Put, Sink, copy

BLOCK = 4 << 20  # bytes that are asked for at once, of what is larger than WHOLE


class Served(Files):
    """The files below a root of one of fsspec's file systems. ``whole``: the area that is read in one request."""

    whole: str | None = None

    def __init__(self, files: Any, root: str) -> None:
        self._files, self._root = files, root.rstrip("/")

    def read(self, name: str, limit: int, put: Put) -> None:
        """See `Files`."""
        path, sink = self._path(name), Sink(limit, put)
        if limit <= WHOLE or (self.whole is not None and name.startswith(self.whole)):
            sink.write(self._files.cat_file(path))
            return
        with self._files.open(path, "rb", block_size=BLOCK) as stream:
            copy(stream, sink.write)

    def size(self, name: str) -> int | None:
        """See `Files`."""
        try:
            return int(self._files.info(self._path(name))["size"])
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        """See `Files`."""
        with suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"
