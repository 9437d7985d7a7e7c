"""External data: the content of tensors in files beside the model, and what such a reference may not do.

A reference comes from whoever made the model. It may name a plain file inside the model's folder and nothing else:
no absolute path, no ``..``, no link of either kind on the way, no device, no folder. Files are opened component by
component without following links, so that nothing can be exchanged between the check and the use.
"""

from __future__ import annotations

import hashlib
import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forge_pipeline.errors import ModelError

if TYPE_CHECKING:
    from onnx import TensorProto

OWN_FILE = "\0"  # no other reference can have this name: it is refused as a file's
_PIECE = 1 << 19  # bytes read at once
_MAX_DIGITS = 18  # more would overflow what protobuf and the file system count with


@contextmanager
def opened(folder: Path, location: str) -> Iterator[int]:
    """Open the file that ``location`` names inside ``folder``; give a file descriptor. Raises ModelError."""
    parts = location.split("/")
    if location.startswith("/") or "\0" in location or "\\" in location or not parts:
        raise _refused(location, "an absolute path or one with forbidden characters")
    if any(part in ("", ".", "..") for part in parts):
        raise _refused(location, "a path with empty, `.` or `..` parts")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for index, part in enumerate(parts):
            kind = os.O_NONBLOCK if index == len(parts) - 1 else os.O_DIRECTORY
            try:
                inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=descriptor)
            except OSError as error:
                raise _refused(location, error.strerror or "what cannot be opened") from error
            os.close(descriptor)
            descriptor = inner
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _refused(location, "something that is not a plain file")
        if status.st_nlink != 1:
            raise _refused(location, f"a file with {status.st_nlink} hard links")
        yield descriptor
    finally:
        os.close(descriptor)


def digest(folder: Path, location: str) -> str:
    """Return the SHA-256 of an external file, read in pieces. Raises ModelError."""
    with opened(folder, location) as descriptor, os.fdopen(os.dup(descriptor), "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class OwnFile:
    """A model's own file, open for as long as somebody may ask for its weights."""

    __slots__ = ("__weakref__", "descriptor")

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalFiles:
    """Reads what the tensors of a model in ``folder`` refer to.

    ``own`` is the model's file itself, which stays open: a reference to OWN_FILE is a range of it, left there
    when the model was read.
    """

    folder: Path
    own: OwnFile | None = None

    def __call__(self, tensor: TensorProto) -> bytes:
        """Return the content of one tensor. Raises ModelError."""
        with self._range(tensor) as (descriptor, offset, length):
            content = os.pread(descriptor, length, offset)
            while len(content) < length:  # one call gives at most 2 GiB
                more = os.pread(descriptor, length - len(content), offset + len(content))
                if not more:
                    raise _cut(tensor.name)
                content += more
            return content

    def chunks(self, tensor: TensorProto) -> Iterator[bytes]:
        """Yield the content of one tensor in pieces, so that memory stays flat. Raises ModelError."""
        with self._range(tensor) as (descriptor, offset, length):
            done = 0
            while done < length:
                piece = os.pread(descriptor, min(_PIECE, length - done), offset + done)
                if not piece:
                    raise _cut(tensor.name)
                done += len(piece)
                yield piece

    @contextmanager
    def _range(self, tensor: TensorProto) -> Iterator[tuple[int, int, int]]:
        """Give file descriptor, offset and length of a tensor's content, once these fit each other."""
        from forge_pipeline.ir.tensors import byte_count

        entries = {entry.key: entry.value for entry in tensor.external_data}
        location, expected = entries.get("location", ""), byte_count(tensor)
        offset = _number(tensor.name, entries, "offset", 0)
        length = _number(tensor.name, entries, "length", expected)
        with self._opened(location) as descriptor:
            size = os.fstat(descriptor).st_size
            if length != expected or offset + length > size:
                raise ModelError(
                    where=f"tensor {tensor.name[:80]!r}",
                    expected=f"{expected} bytes for type {tensor.data_type} and shape {list(tensor.dims[:8])}",
                    found=f"{length} bytes" + ("" if offset + length <= size else f", past the end of {location!r}"),
                    fix="copy the model again together with its data files, or export it again",
                )
            yield descriptor, offset, length

    @contextmanager
    def _opened(self, location: str) -> Iterator[int]:
        if self.own is not None and location == OWN_FILE:
            yield self.own.descriptor
        else:
            with opened(self.folder, location) as descriptor:
                yield descriptor


def _cut(name: str) -> ModelError:
    return ModelError(
        where=f"tensor {name[:80]!r}",
        expected="a file that stays as it is while it is read",
        found="one that became shorter",
        fix="load the model again once nothing writes to it",
    )


def _number(name: str, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
        return int(text)
    raise ModelError(
        where=f"tensor {name!r}",
        expected=f"a plain number as {key} of its external data",
        found=repr(text[:40]),
        fix="the file is damaged or was edited by hand: export the model again",
    )


def _refused(location: str, found: str) -> ModelError:
    return ModelError(
        where=f"external data {location[:200]!r}",
        expected="the name of a plain file inside the model's folder, not a link",
        found=found,
        fix="copy the model again together with its data files, or save it with its weights inside",
    )
