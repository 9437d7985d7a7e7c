"""From a file as it was delivered, plain or encrypted, to a verified library in memory."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from forge_pipeline.content import Made, in_memory
from forge_pipeline.errors import ArtifactError, ConfigError, SecretError
from forge_pipeline.runtime.bundle import FOOTER, Library, check_end
from forge_pipeline.runtime.contents import Contents
from forge_pipeline.runtime.host import Host
from forge_pipeline.runtime.image import open_image
from forge_pipeline.runtime.interface import Interface
from forge_runtime.limits import Limits
from forge_runtime.secret import Secret

if TYPE_CHECKING:
    from forge_pipeline.crypto.keyfile import Pair

FileOrBytes = str | os.PathLike[str] | bytes


def name_of(source: object, name: str) -> str:
    """Return what messages call a source: its path, or ``name`` where it is bytes. Raises ConfigError for others."""
    if isinstance(source, bytes | Made):
        return name
    if isinstance(source, str | os.PathLike):
        return os.fsdecode(source)
    raise ConfigError(name, "a path or bytes", type(source).__name__, "give the path of the file that was delivered")


@contextmanager
def open_library(
    source: FileOrBytes | Made,
    key: FileOrBytes | None,
    password: Secret | None,
    *,
    plaintext_folder: Path | None,
    limits: Limits,
) -> Iterator[tuple[Library, Interface, str]]:
    """Give the library in ``source``, its interface and a path to load it by; only the path is gone afterwards.

    Everything is checked before anything is given: the envelope's authenticity, the library's digest, and that it
    was made for this machine. Raises ArtifactError and SecretError.
    """
    where = name_of(source, "model library")
    with open_image(plaintext_folder) as image:
        contents = _contents(source, key, password, limits, where)
        library = Library.view(contents.view(), where=where, digest=contents.digest())
        interface = _interface_for(library, Host.this(), where)
        image.write(memoryview(library.elf))
        if image.freeze() != library.elf:
            raise ArtifactError(where, "the bytes that were checked", "others", "find out who writes to this process")
        yield library, interface, image.path


def _interface_for(library: Library, host: Host, where: str) -> Interface:
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


def _contents(
    source: FileOrBytes | Made, key: FileOrBytes | None, password: Secret | None, limits: Limits, where: str
) -> Contents:
    """Return the library, decrypted if need be."""
    if isinstance(source, Made):
        contents = Contents(len(source))
        for piece in source.pieces():
            contents.append(piece)
        return contents
    try:
        with _open(source, where) as (stream, size):
            if size > limits.library:
                raise ArtifactError(
                    where,
                    f"at most {limits.library} bytes, what this device gives for it",
                    f"{size} bytes",
                    "make sure that this is the file you mean; free some memory, or raise Engine(..., max_bytes=N)",
                )
            return _read(stream, size, key, password, limits, where)
    except (OSError, MemoryError) as error:
        found = f"{type(error).__name__}: {error}"
        raise ArtifactError(where, "a file that can be read into memory", found, "try again, or copy it") from error


def _read(
    stream: io.BufferedIOBase, size: int, key: FileOrBytes | None, password: Secret | None, limits: Limits, where: str
) -> Contents:
    """Return the library, decrypted if need be. No memory is taken for it before its head was found good."""
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
        _check_footer(stream, size, where)
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
    key_where = name_of(key, "key")
    with _open(key, key_where) as (key_stream, _):
        wrapped = key_stream.read(keyfile.SIZE + 1)

    def unlock(pair: Pair) -> Secret:
        return keyfile.unwrap(wrapped, password, pair=pair, where=key_where, max_bytes=limits.derivation)

    plain: list[Contents] = []

    def keep(part: memoryview) -> None:
        if not plain:  # so the header and the first chunk are authentic
            plain.append(Contents(size))
        plain[0].append(part)

    envelope.decrypt(stream, size, unlock, keep, where=where)
    return plain[0]


def _check_footer(stream: io.BufferedIOBase, size: int, where: str) -> None:
    """Refuse what does not end as a library of its size does."""
    stream.seek(max(0, size - FOOTER))
    check_end(stream.read(FOOTER), size, where)


@contextmanager
def _open(source: FileOrBytes, where: str) -> Iterator[tuple[io.BufferedIOBase, int]]:
    if isinstance(source, bytes):
        yield io.BytesIO(source), len(source)
        return
    fix = "check the path"
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not block
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        found = getattr(error, "strerror", None) or str(error)
        raise ArtifactError(where, "a readable file", found, fix) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ArtifactError(where, "a regular file", "something else", fix)
    with os.fdopen(descriptor, "rb") as stream:
        yield stream, status.st_size
