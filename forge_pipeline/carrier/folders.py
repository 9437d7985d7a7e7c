"""A file server (SFTP, WebDAV, FTP): files are sent under another name and renamed, so that no half of one is seen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from forge_pipeline.carrier.files import Entry, Moved, entry, progress
from forge_pipeline.carrier.served import Served


class Folders(Served):
    """The files of a folder on a server, which is made where the folder that holds it is there."""

    def __init__(self, files: Any, root: str) -> None:
        super().__init__(files, root)
        self._there: set[str] = set()

    def look(self) -> None:
        """See `Files`."""
        try:
            self._files.info(self._root or "/")
        except FileNotFoundError:
            self._files.info(self._root.rpartition("/")[0] or "/")

    def send(self, source: str, name: str, moved: Moved) -> None:
        """See `Files`."""
        self._place(name, lambda partial: self._files.put_file(source, partial, callback=progress(moved)))

    def write(self, data: bytes, name: str, moved: Moved) -> None:
        """See `Files`. By position: back ends name this parameter as they like."""
        self._place(name, lambda partial: self._files.pipe_file(partial, data))

    def names(self, area: str) -> Iterator[list[Entry]]:
        """See `Files`: folder by folder."""
        folders = [self._path(area)]
        while folders:
            try:
                found = self._files.ls(folders.pop(), detail=True)
            except FileNotFoundError:
                continue
            folders += [info["name"] for info in found if info["type"] == "directory"]
            yield [entry(info, self._root) for info in found if info["type"] == "file"]

    def claim(self, name: str, data: bytes) -> bool:
        """See `Files`: to make a folder is what one of several can do. Some servers let each do it: so look first."""
        folder = self._path(name).rpartition("/")[0]
        if self._is_folder(folder):
            return False
        self._make(folder.rpartition("/")[0])
        try:
            self._files.mkdir(folder, create_parents=False)
        except Exception:
            if self._is_folder(folder):
                return False
            raise
        self.write(data, name, lambda count: None)
        return True

    def release(self, name: str) -> None:
        """See `Files`."""
        self.remove(name)
        with suppress(FileNotFoundError):
            self._files.rmdir(self._path(name).rpartition("/")[0])

    def _place(self, name: str, send: Callable[[str], object]) -> None:
        path = self._path(name)
        folder, _, file = path.rpartition("/")
        self._make(folder)
        partial = f"{folder}/.{file}.{os.urandom(8).hex()}"
        try:
            send(partial)
            self._rename(partial, path)
        except BaseException:
            with suppress(Exception):  # the connection may be what failed
                self._files.rm_file(partial)
            raise

    def _rename(self, source: str, target: str) -> None:
        """Rename on the server: fsspec's own `mv` copies where a back end does not say how."""
        move = getattr(getattr(self._files, "client", None), "move", None)
        if move is not None:  # WebDAV
            move(source, target, overwrite=True)
        else:
            self._files.mv(source, target)

    def _make(self, folder: str) -> None:
        """Make a folder below the root, and that; the folder that holds the root is somebody else's."""
        if folder in self._there:
            return
        if not self._is_folder(folder):
            if folder not in ("", self._root):
                self._make(folder.rpartition("/")[0])
            try:
                self._files.mkdir(folder, create_parents=False)
            except Exception:
                if not self._is_folder(folder):  # else another was quicker
                    raise
        self._there.add(folder)

    def _is_folder(self, path: str) -> bool:
        try:
            return bool(self._files.info(path or "/")["type"] == "directory")
        except FileNotFoundError:
            return False
