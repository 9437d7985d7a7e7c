"""An object store (S3, Google Cloud Storage, Azure): an object appears whole, and a bucket is never made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from forge_pipeline.carrier.files import Entry, Moved, entry, progress
from forge_pipeline.carrier.served import Served


class Objects(Served):
    """The objects below a bucket, or a prefix in one."""

    whole = "actions/"

    def __init__(self, files: Any, root: str) -> None:
        super().__init__(files, root)
        self._replacing = {"overwrite": True} if "abfs" in files.protocol else {}  # which is what the others do

    def look(self) -> None:
        """See `Files`. Who may not ask for the bucket may still be let at what is in it."""
        try:
            self._files.info(self._root.partition("/")[0])
        except PermissionError:
            with suppress(FileNotFoundError):
                self._files.cat_file(self._path("look"))

    def send(self, source: str, name: str, moved: Moved) -> None:
        """See `Files`."""
        self._files.put_file(source, self._path(name), callback=progress(moved), **self._replacing)

    def write(self, data: bytes, name: str, moved: Moved) -> None:
        """See `Files`. By position: back ends name this parameter as they like."""
        self._files.pipe_file(self._path(name), data)

    def names(self, area: str) -> Iterator[list[Entry]]:
        """See `Files`."""
        yield [entry(info, self._root) for info in self._files.find(self._path(area), detail=True).values()]

    def claim(self, name: str, data: bytes) -> bool:
        """See `Files`: by the condition that there is no such object. Some servers know none: so look first."""
        if self.size(name) is not None:
            return False
        try:
            self._files.pipe_file(self._path(name), data, mode="create")
        except FileExistsError:
            return False
        return True
