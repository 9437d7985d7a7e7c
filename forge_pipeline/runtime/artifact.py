"""From a file as it was delivered, plain or encrypted, to a verified library in memory."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from forge_pipeline.content import in_memory
from forge_pipeline.crypto.secret import Secret
from forge_pipeline.errors import ArtifactError, SecretError
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.runtime.contents import Contents
from forge_pipeline.runtime.host import Host
from forge_pipeline.runtime.image import opened_image
from forge_pipeline.runtime.interface import Interface

if TYPE_CHECKING:
    from forge_pipeline.crypto.keyfile import Pair

FileOrBytes = str | os.PathLike[str] | bytes


@contextmanager
def opened_library(
    source: FileOrBytes,
    key: FileOrBytes | None,
    password: Secret | None,
    *,
    plaintext_folder: Path | None,
) -> Iterator[tuple[Library, Interface, str]]:
    """Give the library in ``source``, its interface and a path to load it by; only the path is gone afterwards.

    Everything is checked before anything is given: the envelope's authenticity, the library's digest, and that it
    was made for this machine. Raises ArtifactError and SecretError.
    """
    where = "model library" if isinstance(source, bytes) else os.fspath(source)
    with opened_image(plaintext_folder) as image:
        with _opened(source, where) as (stream, size):
            contents = _read(stream, size, key, password, where)
        library = Library.view(contents.view(), where=where, digest=contents.digest())
        interface = _fitting(library, Host.this(), where)
        image.write(memoryview(library.elf))
        if image.freeze() != library.elf:
            raise ArtifactError(where, "the bytes that were checked", "others", "find out who writes to this process")
        yield library, interface, image.path


def _fitting(library: Library, host: Host, where: str) -> Interface:
    """Return the library's interface once it is clear that the library is for ``host``."""
    try:
        host.check_target(library.metadata["target"], where=where)
        host.check_elf(memoryview(library.elf), where=where)
        return Interface.of(library.metadata, memoryview(in_memory(library.weights)), where=where)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(
            f"metadata of {where}",
            "target, inputs, outputs and weights as docs/format.md describes them",
            f"{type(error).__name__}: {error}",
            "build the library anew with this release of forge-pipeline",
        ) from error


def _read(
    stream: io.BufferedIOBase, size: int, key: FileOrBytes | None, password: Secret | None, where: str
) -> Contents:
    """Return the library, decrypted if need be."""
    from forge_pipeline.crypto import envelope, keyfile

    head = stream.read(len(envelope.MAGIC))
    stream.seek(0)
    if not envelope.is_encrypted(head):
        if key is not None or password is not None:
            raise ArtifactError(
                where,
                "an encrypted model, as a key or a password was given",
                "a file that is not encrypted",
                "make sure that this is the file you mean; a plain library is loaded without key and password",
            )
        contents = Contents(size)
        if isinstance(stream, io.BytesIO):
            contents.append(stream.getbuffer())
        else:
            contents.append_file(stream.fileno())
        return contents
    if key is None or password is None:
        lacking = "key" if key is None else "password"
        raise SecretError(
            where,
            "its key file and password",
            f"Model looks encrypted but no {lacking} provided",
            "give both: Engine(library, key=PATH_OF_modelKey.bin, password=PASSWORD)",
        )
    key_where = "key" if isinstance(key, bytes) else os.fspath(key)
    with _opened(key, key_where) as (key_stream, _):
        wrapped = key_stream.read(keyfile.SIZE + 1)

    def unlock(pair: Pair) -> Secret:
        return keyfile.unwrap(wrapped, password, pair=pair, where=key_where)

    contents = Contents(size)
    envelope.decrypt(stream, size, unlock, contents.append, where=where)
    return contents


@contextmanager
def _opened(source: FileOrBytes, where: str) -> Iterator[tuple[io.BufferedIOBase, int]]:
    if isinstance(source, bytes):
        yield io.BytesIO(source), len(source)
        return
    fix = "check the path"
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not block
    except OSError as error:
        raise ArtifactError(where, "a readable file", error.strerror or type(error).__name__, fix) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ArtifactError(where, "a regular file", "something else", fix)
    with os.fdopen(descriptor, "rb") as stream:
        yield stream, status.st_size
