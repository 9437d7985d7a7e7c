"""The process that talks to a remote: fsspec and its back ends, where they can neither hold nor harm a build.

It runs as a script of its own, and imports nothing of this package. It may hang, take too much memory or die: its
parent (`remote`) ends it then. It leaves by itself, whatever it is doing, when its parent has gone.

Its argument is the descriptor of a connection. The parent sends a URL, which is answered by what is wrong with it,
or nothing; then requests, one at a time, as JSON. The answer to each are pieces (``d`` and the bytes of a file, ``p``
and the number of bytes that were sent), and an end: ``=`` and JSON, where ``end`` is `done`, `missing`, `odd` (no
regular file, or too long), or `failed`.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from multiprocessing.connection import Connection
from threading import Thread
from typing import IO, Any

CHUNK = 1 << 20
BLOCK = 4 << 20  # what a back end that reads by blocks asks for at once
MEMORY = 2 << 30  # enough for uploads in parallel parts of 50 MB, and an end to an answer that has none
LONGEST = 500  # characters of an error's text

Put = Callable[[bytes], None]
Moved = Callable[[int], None]


class OddError(Exception):
    """What has the name of a file is none of those that a store writes."""


class Files:
    """The files below one URL."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        self._files, root = url_to_fs(url)
        self._local = isinstance(self._files, LocalFileSystem)
        self._http = "http" in self._files.protocol
        root, mark, query = root.partition("?") if self._http else (root, "", "")
        self._root, self._query = root.rstrip("/"), mark + query

    def read(self, name: str, limit: int, put: Put) -> None:
        """Pass a file to ``put`` in pieces. Raises OddError, FileNotFoundError, and what the back end raises."""
        sink = _Sink(limit, put)
        path = self._path(name)
        if self._local:
            with _regular(path, limit) as stream:
                _copy(stream, sink.write)
        elif self._http:
            # Not `open`, which asks for the size first, and takes every failure of that for a file that is missing.
            self._files.get_file(path, sink, chunk_size=CHUNK)
        else:
            with self._files.open(path, "rb", block_size=BLOCK) as stream:
                _copy(stream, sink.write)

    def has(self, name: str, size: int) -> bool:
        """Say whether there is a file of that size; where that cannot be told, sending it will tell why."""
        path = self._path(name)
        try:
            if self._local:
                status = os.lstat(path)
                return stat.S_ISREG(status.st_mode) and status.st_size == size
            return bool((self._head(path) if self._http else self._files.info(path)["size"]) == size)
        except Exception:  # noqa: BLE001 - each back end raises its own kinds
            return False

    def _head(self, path: str) -> int | None:
        """Ask a web server for a size, once: `info` would ask for the whole file where this fails."""
        from fsspec.asyn import sync

        async def ask() -> int | None:
            session = await self._files.set_session()
            async with session.head(self._files.encode_url(path), allow_redirects=True) as reply:
                return int(reply.headers["Content-Length"]) if reply.status == 200 else None

        size: int | None = sync(self._files.loop, ask)
        return size

    def send(self, source: str, name: str, moved: Moved) -> None:
        """Send a file."""
        if self._local:
            with open(source, "rb") as stream:  # noqa: PTH123
                _place(stream, self._path(name), moved)
            return
        from fsspec.callbacks import Callback

        class Progress(Callback):  # type: ignore[misc]
            def relative_update(self, inc: int = 1) -> None:
                moved(inc)
                super().relative_update(inc)

            def absolute_update(self, value: int) -> None:
                moved(max(0, value - self.value))
                super().absolute_update(value)

        options = {"method": "put"} if self._http else {}
        self._write(name, lambda path: self._files.put_file(source, path, callback=Progress(), **options))

    def write(self, data: bytes, name: str, moved: Moved) -> None:
        """Send bytes."""
        if self._local:
            _place(BytesIO(data), self._path(name), moved)
        elif self._http:
            self._files.put_file(BytesIO(data), self._path(name), method="put")
        else:  # by position: back ends name this parameter as they like
            self._write(name, lambda path: self._files.pipe_file(path, data))

    def _write(self, name: str, send: Callable[[str], object]) -> None:
        path = self._path(name)
        try:
            send(path)
        except FileNotFoundError:
            # A back end with real folders; the others, object stores, would make a bucket of a misspelt name.
            if self._files.async_impl:
                raise
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            send(path)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}{self._query}"


class _Sink:
    """A file, as far as fsspec asks for one, that passes on what is written to it, in small pieces."""

    def __init__(self, limit: int, put: Put) -> None:
        self._left, self._put = limit, put

    def write(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise OddError
        for start in range(0, len(data), CHUNK):
            self._put(data[start : start + CHUNK])

    def read(self) -> bytes:
        return b""

    def tell(self) -> int:
        return 0

    def close(self) -> None:
        pass


def _regular(path: str, limit: int) -> IO[bytes]:
    """Open a file without waiting for a writer of a pipe, or following a link to what has no end."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise OddError
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    status = os.fstat(stream.fileno())  # again: the name may be another's by now
    if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
        stream.close()
        raise OddError
    return stream


def _place(stream: IO[bytes], path: str, moved: Moved) -> None:
    """Write a file beside its place and rename it: no half of one under its name, and no link is followed."""
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    partial = f"{folder}/.{name}.{os.urandom(8).hex()}"
    try:
        with open(partial, "xb") as out:  # noqa: PTH123

            def put(piece: bytes) -> None:
                out.write(piece)
                moved(len(piece))

            _copy(stream, put)
        os.replace(partial, path)  # noqa: PTH105
    finally:
        with suppress(FileNotFoundError):
            os.unlink(partial)  # noqa: PTH108


def _copy(stream: IO[bytes], put: Put) -> None:
    while piece := stream.read(CHUNK):
        put(piece)


def what_is_wrong(url: str) -> dict[str, Any] | None:
    """Return why a URL cannot be used here: no known protocol, or none whose package is installed."""
    from fsspec import get_filesystem_class
    from fsspec.registry import available_protocols

    known = available_protocols()
    for protocol in url.partition("://")[0].split("::") if "://" in url else ["file"]:
        if protocol not in known:
            return {"protocol": protocol, "known": sorted(known)}
        try:
            get_filesystem_class(protocol)
        except ImportError as error:
            return {"protocol": protocol, "missing": str(error)}
    return None


def answer(files: Files, request: dict[str, Any], parent: Connection) -> str:
    """Do what is asked for, and return how it ended."""

    def moved(count: int) -> None:
        parent.send_bytes(b"p%d" % count)

    name = request["name"]
    if request["do"] == "read":
        files.read(name, request["limit"], lambda piece: parent.send_bytes(b"d" + piece))
    elif request["do"] == "write":
        files.write(parent.recv_bytes(), name, moved)
    elif os.path.exists(source := request["source"]):  # noqa: PTH110 - else damaged and moved away since
        if request["replace"] or not files.has(name, request["size"]):
            files.send(source, name, moved)
    else:
        return "missing"
    return "done"


def serve(parent: Connection) -> None:
    """Answer requests until the parent has no more."""
    url = os.fsdecode(parent.recv_bytes())
    parent.send_bytes(_end(wrong=what_is_wrong(url)))
    files: Files | None = None
    while True:
        request = json.loads(parent.recv_bytes())
        found = ""
        try:
            files = files or Files(url)  # not before: some back ends connect
            end = answer(files, request, parent)
        except FileNotFoundError as error:
            end, found = ("missing", "") if request["do"] == "read" else ("failed", _said(error))
        except OddError:
            end = "odd"
        except Exception as error:  # noqa: BLE001 - a back end's errors have no common base
            end, found = "failed", _said(error)
        parent.send_bytes(_end(end=end, found=found))


def _end(**values: Any) -> bytes:
    return b"=" + json.dumps(values).encode()


def _said(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST]


def _leave_with_parent(descriptor: int) -> None:
    """Wait until nobody is at the other end of the connection; then leave, within a second."""
    waiting = select.poll()
    waiting.register(descriptor, 0)  # nothing but its end
    waiting.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)
    os._exit(1)


def main(descriptor: int) -> None:
    """Serve the parent at the other end of ``descriptor``."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    bound = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # unwinds: no partial file stays
    Thread(target=_leave_with_parent, args=(descriptor,), daemon=True).start()
    with suppress(EOFError, ConnectionError):
        serve(Connection(descriptor))


if __name__ == "__main__":
    main(int(sys.argv[1]))
