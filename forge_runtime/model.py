"""From a file as it was delivered, plain or encrypted, to a model that libforge opened and checked."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from forge_runtime.errors import ArtifactError, ConfigError
from forge_runtime.interface import Interface, Tensor
from forge_runtime.library import ALIGNMENT, Port, Source, failure, libforge
from forge_runtime.limits import Limits
from forge_runtime.secret import Secret

MAX_KEYS = 1 << 20
"""Bytes of a file of public keys that are read."""


@runtime_checkable
class Made(Protocol):
    """Bytes that are made while somebody reads them."""

    def __len__(self) -> int: ...

    def pieces(self) -> Iterable[bytes | bytearray | memoryview]:
        """Yield the bytes."""
        ...


FileOrBytes = str | os.PathLike[str] | bytes


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose signature a library must have: ``keys``, lines of .pub files; ``signature``: None for the one beside it."""

    keys: bytes
    signature: FileOrBytes | None

    @classmethod
    def of(cls, trusted: Sequence[str | os.PathLike[str]] | None, signature: FileOrBytes | None) -> Trust | None:
        """Take keys, each a line or a file of lines. Raises ConfigError for what is neither, and for a single text."""
        if trusted is None and signature is None:
            return None
        if isinstance(trusted, str | bytes | os.PathLike) or not isinstance(trusted, Iterable):
            found = "none" if trusted is None else "a single one"
            raise ConfigError("trusted", "a list of public keys", found, "give trusted=['ssh-ed25519 AAAA...']")
        return cls(b"\n".join(map(_key_lines, trusted)), signature)

    def ask(self, source: Source) -> None:
        """Ask libforge to check it."""
        source.trusted, source.trusted_size = self.keys, len(self.keys)
        if isinstance(self.signature, bytes):
            source.signature, source.signature_size = self.signature, len(self.signature)
        elif self.signature is not None:
            source.signature_path = _path(self.signature, name_of(self.signature, "signature"))


def _key_lines(key: str | os.PathLike[str]) -> bytes:
    if isinstance(key, str) and key.startswith("ssh-"):
        return key.encode()
    where = name_of(key, "trusted")
    _path(key, where)
    try:
        with Path(key).open("rb") as stream:
            return stream.read(MAX_KEYS)
    except OSError as error:
        found = error.strerror or "an error"
        raise ConfigError(where, "a public key, or a file of them", found, "correct the path") from error


class Model:
    """A library that was opened: its handle, metadata and interface. It never changes, and threads may share it."""

    def __init__(
        self,
        source: FileOrBytes | Made,
        key: FileOrBytes | None,
        password: Secret | None,
        limits: Limits,
        trust: Trust | None = None,
        variant: str | None = None,
    ) -> None:
        """Open it. Raises ArtifactError, SecretError, and ConfigError for what names no file."""
        self.where = name_of(source, "model library")
        self.names = {"library": self.where, "encrypted model": self.where, "key file": name_of(key or b"", "key")}
        asked = Source(max_bytes=limits.library or 1, max_kdf_bytes=limits.derivation or 1)
        self._memory: object = None
        if isinstance(source, Made):
            self._memory = memory = _filled(source)
            asked.file, asked.size = ctypes.addressof(memory), len(source)
            asked.max_bytes = 0  # it is there already
        elif isinstance(source, bytes):
            place = ctypes.cast(ctypes.c_char_p(source), ctypes.c_void_p).value or 0
            asked.file, asked.size = place, len(source)
            self._memory = None if place % ALIGNMENT else source  # where it is aligned it is used in place
        else:
            asked.path = _path(source, self.where)
        if isinstance(key, bytes):
            asked.key, asked.key_size = key, len(key)
        elif key is not None:
            asked.key_path = _path(key, self.names["key file"])
        if password is not None:
            asked.password = password.reveal()
            asked.password_size = len(password.reveal())
        if trust is not None:
            trust.ask(asked)
        if variant is not None:
            asked.variant = _variant(variant)
        self.handle = ctypes.c_void_p()
        library = libforge()
        if code := library.forge_open_from(ctypes.byref(asked), ctypes.byref(self.handle)):
            raise failure(code, self.names)
        weakref.finalize(self, library.forge_close, self.handle.value).atexit = False
        self.metadata = self._read_metadata()
        self.interface = Interface.of(self.metadata, where=self.where)
        self._check(self.interface.inputs, library.forge_inputs(self.handle), library.forge_input)
        self._check(self.interface.outputs, library.forge_outputs(self.handle), library.forge_output)

    def _read_metadata(self) -> Mapping[str, Any]:
        size = ctypes.c_size_t()
        text = ctypes.string_at(libforge().forge_metadata(self.handle, ctypes.byref(size)), size.value)
        try:
            metadata: Mapping[str, Any] = json.loads(text)
        except (ValueError, RecursionError) as error:
            fix = "build the library anew with this release of forge-pipeline"
            raise ArtifactError(f"metadata of {self.where}", "a JSON object", f"{error}", fix) from error
        return metadata

    def _check(self, tensors: tuple[Tensor, ...], count: int, port: Any) -> None:
        """Raise ArtifactError where the metadata say other than the program, which is what runs."""
        found = [port(self.handle, index).contents for index in range(count)]
        said = [(tensor.name, tensor.dtype.itemsize, len(tensor.shape)) for tensor in tensors]
        if said != [(_text(row), row.dtype.bits // 8, row.rank) for row in found]:
            expected = "metadata with the inputs and outputs of the program"
            raise ArtifactError(f"metadata of {self.where}", expected, "others", "build the library anew")


def name_of(source: object, name: str) -> str:
    """Return what messages call a source: its path, or ``name`` where it is bytes. Raises ConfigError for others."""
    if isinstance(source, str | os.PathLike):
        return os.fsdecode(source)
    if isinstance(source, bytes | Made):
        return name
    raise ConfigError(name, "a path or bytes", type(source).__name__, "give the path of the file that was delivered")


def _variant(name: object) -> bytes:
    if not isinstance(name, str):
        fix = "give one that the library's metadata name, or leave it out for the best"
        raise ConfigError("variant", "the name of one", type(name).__name__, fix)
    return name.encode()


def _path(path: str | os.PathLike[str], where: str) -> bytes:
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise ArtifactError(where, "a readable file", "a path with a zero byte", "check the path")
    return encoded


def _filled(source: Made) -> ctypes.Array[ctypes.c_char]:
    """Return memory of its own, at the start of a page, with all that ``source`` yields."""
    size = len(source)
    try:
        memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, MemoryError) as error:
        fix = "free some memory, or use a device that has more"
        raise ArtifactError("memory", f"{size} bytes for the library", str(error), fix) from error
    place = 0
    for piece in source.pieces():
        stop = place + len(memoryview(piece))
        memory[place:stop] = piece
        place = stop
    return (ctypes.c_char * max(size, 1)).from_buffer(memory)


def _text(port: Port) -> str:
    name: bytes = port.name
    return name.decode("utf-8", "replace")
