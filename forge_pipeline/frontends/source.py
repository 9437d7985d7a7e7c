"""A model as the user names it: a file or folder, and a digest over everything that it consists of."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forge_pipeline.content import open_plain, open_stream, state_of, was_digested
from forge_pipeline.digest import CHUNK, digest_file, digest_json
from forge_pipeline.errors import ModelError
from forge_pipeline.ir.external_data import protobuf_wire, rules
from forge_pipeline.ir.external_data.file_kinds import unreadable

_MARK = b"location"  # the key of every reference to another file: without it, there is no reference to look for


@dataclass(frozen=True, slots=True)
class Source:
    """A model file (or folder). Nothing is read before it is asked for."""

    path: Path

    def digest(self) -> str:
        """Return a SHA-256 over the file and every file it refers to; over all files, for a folder.

        File names beside a model count, because the model refers to them; its own name does not. Imports no
        framework and holds no file in memory. Raises ModelError where the model cannot be read, or refers to what
        it may not.
        """
        try:
            if self.path.is_dir():
                return digest_json({"tree": self._tree()})
            if not self.path.exists() or self.path.is_file():
                return self._file_digest()
        except OSError as error:
            raise unreadable(self.path, error) from error
        raise _not_plain(self.path)

    def _file_digest(self) -> str:
        own, refers = _digest_and_mark(self.path)
        if not refers:
            return own
        try:
            with open_stream(self.path) as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                locations = protobuf_wire.external_locations(data)
        except protobuf_wire.WireError:  # not an ONNX model, or a damaged one: its own bytes are all there is
            return own
        if not locations:
            return own
        folder = self.path.parent
        return digest_json({"file": own, "external": {name: rules.digest(folder, name) for name in locations}})

    def _tree(self) -> dict[str, str]:
        digests = {}
        for parent, folders, files in os.walk(self.path, followlinks=False):
            folders.sort()
            for name in sorted(files):
                file = Path(parent, name)
                if not file.is_file() or file.is_symlink():
                    raise _not_plain(file)
                digests[file.relative_to(self.path).as_posix()] = digest_file(file)
        return digests


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have every refusal of a model name its file."""
    try:
        yield
    except ModelError as error:
        if error.where.startswith((str(path), str(path.absolute()))):
            raise
        raise ModelError(f"{path}: {error.where}", error.expected, error.found, error.fix) from error


def _not_plain(path: Path) -> ModelError:
    return ModelError(
        where=str(path),
        expected="a plain file",
        found="a link, a device or a pipe",
        fix="give a copy of the model that is made of plain files",
    )


def _digest_and_mark(path: Path) -> tuple[str, bool]:
    """Return a file's SHA-256, and whether it holds the mark of a reference, in one pass."""
    digest, found, carried = hashlib.sha256(), False, b""
    with os.fdopen(open_plain(path), "rb") as stream:
        state = state_of(stream.fileno())
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            found = found or _MARK in chunk or _MARK in carried + chunk[: len(_MARK)]
            carried = chunk[-len(_MARK) :]
    was_digested(path, state, digest.hexdigest())
    return digest.hexdigest(), found
