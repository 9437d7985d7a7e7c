"""A second store behind any fsspec URL: read through, write behind, never trusted, never a reason to fail.

It holds the same names as the local folder, so a shared folder, an object store and a web server all serve. Whoever
can write to it can answer for any action key: give write access to those whose builds you would run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from forge_pipeline.digest import CHUNK
from forge_pipeline.errors import StoreError, did_you_mean
from forge_pipeline.store.disk import ACTIONS, OBJECTS, fan_out

WHERE = "store.remote"
MAX_RECORD = 16 << 20
_SECRET = re.compile(r"(?<=://)[^/@\s]*(?=@)|(?<=\?)\S+")


class UnreachableError(Exception):
    """The remote did not answer as a file system does."""


class Remote:
    """One remote. The first failure is told once, and switches it off for the rest of this process."""

    def __init__(self, url: str, notify: Callable[[str], None]) -> None:
        """Raises StoreError when the URL names no known protocol, or one whose package is not installed."""
        self._url, self._notify = url, notify
        self._off = False
        self._switch = Lock()  # both threads may fail at once
        self._uploads: ThreadPoolExecutor | None = None
        self._distrusted: set[str] = set()
        _check_protocol(url)
        from fsspec.core import url_to_fs

        try:
            self._files, self._root = url_to_fs(url)
        except Exception as error:  # noqa: BLE001 - each back end raises its own kinds, some of them from here
            self._give_up(error)

    def fetch(self, area: str, digest: str, sink: Callable[[bytes], object], limit: int | None) -> bool:
        """Pass the file to ``sink`` in pieces, up to and with the one that passes ``limit`` bytes.

        False when the remote has no such file, or fails. What ``sink`` raises goes through.
        """
        if self._off:
            return False
        taken = 0
        try:
            for piece in self._read(area, digest):
                sink(piece)
                taken += len(piece)
                if limit is not None and taken > limit:
                    break
        except FileNotFoundError:
            return False
        except UnreachableError as error:
            self._give_up(error.__cause__ or error)
            return False
        return True

    def record(self, key: str) -> bytes | None:
        """Return the bytes of an action's record, as they are; None when the remote has none, or fails."""
        pieces: list[bytes] = []
        return b"".join(pieces) if self.fetch(ACTIONS, key, pieces.append, MAX_RECORD) else None

    def distrust(self, area: str, digest: str) -> None:
        """Say that the remote's file is damaged, so that the next upload replaces it."""
        self._distrusted.add(digest)
        self._notify(f"{self._path(area, digest)}: damaged in the remote store; it is not used")

    def upload(self, key: str, record: bytes, objects: Mapping[str, Path]) -> None:
        """Send an action's objects, then its record, behind the caller's back. ``objects``: file by digest."""
        if self._off:
            return
        if self._uploads is None:
            self._uploads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forge-store-upload")
        self._uploads.submit(self._upload, key, record, objects)

    def flush(self, *, cancel: bool = False) -> None:
        """Wait for the uploads under way; with ``cancel``, only for the one that has begun."""
        if self._uploads is not None:
            self._uploads.shutdown(wait=True, cancel_futures=cancel)
            self._uploads = None

    def _upload(self, key: str, record: bytes, objects: Mapping[str, Path]) -> None:
        try:
            for digest, path in objects.items():
                if self._off or not path.exists():  # damaged and moved away since: its action is built again
                    return
                if digest in self._distrusted or not self._has(digest, path.stat().st_size):
                    self._write(OBJECTS, digest, partial(self._files.put_file, str(path)))
            self._write(ACTIONS, key, partial(self._files.pipe_file, value=record))
        except Exception as error:  # noqa: BLE001 - as above: a back end's errors have no common base
            self._give_up(error)

    def _has(self, digest: str, size: int) -> bool:
        try:
            return bool(self._files.info(self._path(OBJECTS, digest))["size"] == size)
        except FileNotFoundError:
            return False

    def _write(self, area: str, digest: str, send: Callable[[str], Any]) -> None:
        path = self._path(area, digest)
        try:
            send(path)
        except FileNotFoundError:  # a back end with real folders
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            send(path)
        self._distrusted.discard(digest)

    def _read(self, area: str, digest: str) -> Iterator[bytes]:
        try:
            with self._files.open(self._path(area, digest), "rb") as stream:
                while piece := stream.read(CHUNK):
                    yield piece
        except FileNotFoundError:
            raise
        except Exception as error:
            raise UnreachableError from error

    def _path(self, area: str, digest: str) -> str:
        return f"{self._root.rstrip('/')}/{area}/{fan_out(digest)}"

    def _give_up(self, error: BaseException) -> None:
        with self._switch:
            first, self._off = not self._off, True
        if first:
            found = f"{type(error).__name__}: {error}"
            self._notify(_SECRET.sub("***", f"remote store {self._url} failed ({found}); the build goes on without it"))


def _check_protocol(url: str) -> None:
    from fsspec import get_filesystem_class
    from fsspec.registry import available_protocols

    known = available_protocols()
    for protocol in url.partition("://")[0].split("::") if "://" in url else ["file"]:
        if protocol not in known:
            raise StoreError(
                where=WHERE,
                expected="an fsspec URL, such as s3://bucket/folder or file:///folder",
                found=f"protocol {protocol!r}",
                fix=f"{did_you_mean(protocol, known)}correct the URL, or set store.remote=null",
            )
        try:
            get_filesystem_class(protocol)
        except ImportError as error:
            raise StoreError(
                where=WHERE, expected=f"what {protocol!r} needs to be installed", found=str(error), fix="install it"
            ) from error
