"""A web server: read by GET, asked by HEAD, and written by PUT where it takes that."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from forge_pipeline.carrier.files import CHUNK, Files, Moved, Put, Sink, progress


class Web(Files):
    """The files below an http or https URL, whose query goes with every request."""

    def __init__(self, files: Any, root: str) -> None:
        self._files = files
        root, mark, query = root.partition("?")
        self._root, self._query = root.rstrip("/"), mark + query

    def look(self) -> None:
        """See `Files`: any answer but a refusal will do, since most servers list no folder."""
        self.size("look")

    def read(self, name: str, limit: int, put: Put) -> None:
        """See `Files`. Not by `open`, which asks for the size first, and takes a failure for a missing file."""
        self._files.get_file(self._path(name), Sink(limit, put), chunk_size=CHUNK)

    def size(self, name: str) -> int | None:
        """See `Files`. One question: `info` would ask for the whole file where this fails."""
        from fsspec.asyn import sync

        async def ask() -> int | None:
            session = await self._files.set_session()
            async with session.head(
                self._files.encode_url(self._path(name)), allow_redirects=True, **self._files.kwargs
            ) as reply:
                if reply.status in (401, 403) or (reply.status >= 500 and reply.status != 501):
                    reply.raise_for_status()
                return int(reply.headers.get("Content-Length", -1)) if reply.status == 200 else None

        size: int | None = sync(self._files.loop, ask)
        return size

    def send(self, source: str, name: str, moved: Moved) -> None:
        """See `Files`."""
        self._files.put_file(source, self._path(name), callback=progress(moved), method="put")

    def write(self, data: bytes, name: str, moved: Moved) -> None:
        """See `Files`."""
        self._files.put_file(BytesIO(data), self._path(name), method="put")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}{self._query}"
