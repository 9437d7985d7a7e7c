"""The library file: one ELF shared object that also carries its weights, its metadata and its own digest.

    [ELF] [zeros up to a multiple of 4096] [weights] [metadata] [footer, 64 bytes]

A dynamic linker maps what the ELF headers name and never looks behind them, so the file stays an ordinary
shared object to ``dlopen`` and ``objdump``, while the footer lets the runtime notice a truncated or altered
file before any byte of it is executed. docs/format.md is the reference for auditors.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge_pipeline.content import Buffer, Content, FileRange, Made, OpenFile, in_memory, pieces
from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import ArtifactError

MAGIC = b"\x89MLLIB\r\n"
VERSION = 1
PAGE = 4096
"""Alignment of the weights in the file, so that a mapping of the file maps them too."""

_HEAD = struct.Struct(">8sHHIQQ")  # magic, version, reserved, metadata length, ELF length, weights length
_DIGEST = hashlib.sha256().digest_size
FOOTER = _HEAD.size + _DIGEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A compiled model for one target: machine code, interface and, where kept apart from it, weights.

    The weights may be a range of a file, to be read when they are needed.
    """

    elf: Buffer = field(repr=False)
    metadata: Mapping[str, Any]
    weights: Buffer | FileRange = field(default=b"", repr=False)

    def metadata_bytes(self) -> bytes:
        """Return the metadata as canonical JSON, exactly as it stands in the file."""
        return canonical_json(dict(self.metadata))

    def to_bytes(self) -> bytes:
        """Return the file. The same three parts always give the same bytes."""
        return b"".join(self._pieces())

    def content(self) -> Content:
        """Return the file as ``to_bytes`` does; where the weights are in a file, to be read in pieces."""
        if not isinstance(self.weights, FileRange):
            return self.to_bytes()
        elf = len(self.elf) + _padding(len(self.elf))
        return Made(elf + len(self.weights) + len(self.metadata_bytes()) + FOOTER, self._pieces)

    def _pieces(self) -> Iterator[Buffer]:
        metadata = self.metadata_bytes()
        head = _HEAD.pack(MAGIC, VERSION, 0, len(metadata), len(self.elf), len(self.weights))
        digest = hashlib.sha256()
        parts: tuple[Content, ...] = (self.elf, bytes(_padding(len(self.elf))), self.weights, metadata, head)
        for part in parts:
            for piece in pieces(part):
                digest.update(piece)
                yield piece
        yield digest.digest()

    @classmethod
    def from_file(cls, path: Path) -> Library:
        """Do as ``from_bytes`` does with a file, whose weights stay there. Raises ArtifactError, and OSError."""
        file, where = OpenFile.of(path), str(path)
        size = file.size
        data = memoryview(mmap.mmap(file.descriptor, 0, access=mmap.ACCESS_READ) if size else b"")
        metadata_length, elf_length, weights_length = _lengths(data, where)
        digest = hashlib.sha256()
        for piece in FileRange(file, 0, size - _DIGEST).pieces():
            digest.update(piece)
        _check_digest(digest.digest(), data, where)
        weights = elf_length + _padding(elf_length)
        metadata = weights + weights_length
        return cls(
            elf=bytes(data[:elf_length]),
            metadata=_parse_metadata(bytes(data[metadata : metadata + metadata_length]), where),
            weights=FileRange(file, weights, weights_length),
        )

    @classmethod
    def from_bytes(cls, buffer: Buffer, *, where: str = "model library") -> Library:
        """Return a copy of the three parts after checking every byte of the file.

        Raises ArtifactError, naming ``where`` the bytes come from, when the file is truncated, extended,
        altered, of another format version, or no library at all. ``from_bytes(data).to_bytes() == data``.
        """
        view = cls.view(buffer, where=where)
        return cls(elf=bytes(view.elf), metadata=view.metadata, weights=bytes(in_memory(view.weights)))

    @classmethod
    def view(cls, buffer: Buffer, *, where: str = "model library", digest: bytes | None = None) -> Library:
        """Do as ``from_bytes`` does, with ``elf`` and ``weights`` as read-only windows onto ``buffer``.

        ``digest`` is the SHA-256 of all before the last 32 bytes, if it is known.
        """
        data = memoryview(buffer).toreadonly().cast("B")
        metadata_length, elf_length, weights_length = _lengths(data, where)
        _check_digest(digest or hashlib.sha256(data[:-_DIGEST]).digest(), data, where)
        weights = elf_length + _padding(elf_length)
        metadata = weights + weights_length
        return cls(
            elf=data[:elf_length],
            metadata=_parse_metadata(bytes(data[metadata : metadata + metadata_length]), where),
            weights=data[weights:metadata],
        )


def _padding(elf_length: int) -> int:
    return -elf_length % PAGE


def _lengths(data: memoryview, where: str) -> tuple[int, int, int]:
    """Return the lengths of metadata, ELF and weights; they account for the file to the last byte."""
    lengths = check_end(data[-FOOTER:], len(data), where)
    _, elf_length, _ = lengths
    if any(data[elf_length : elf_length + _padding(elf_length)]):
        expected, fix = f"zeros after {elf_length} bytes, as the footer says", "copy the file again, or build it anew"
        raise ArtifactError(where, expected, "other bytes", fix)
    return lengths


def check_end(footer: Buffer, length: int, where: str) -> tuple[int, int, int]:
    """Return the lengths of metadata, ELF and weights of a file that is ``length`` bytes long, from its last ones."""
    expected = "a model library: an ELF file with a forge-pipeline footer"
    rebuild = "copy the file again from where it was built, or build it anew"
    if len(footer) < FOOTER:
        raise ArtifactError(where, expected, f"{len(footer)} bytes, less than the footer alone", rebuild)
    head = footer[:-_DIGEST]
    magic, version, reserved, metadata_length, elf_length, weights_length = _HEAD.unpack(head)
    if magic != MAGIC:
        raise ArtifactError(where, expected, "no footer at its end: truncated, or another kind of file", rebuild)
    if version != VERSION or reserved != 0:
        raise ArtifactError(
            where,
            f"library format {VERSION}",
            f"format {version}, reserved field {reserved}",
            "load it with the release of forge-pipeline that built it, or build it anew",
        )
    size = elf_length + _padding(elf_length) + weights_length + metadata_length + FOOTER
    if size != length:
        raise ArtifactError(where, f"{size} bytes, as the footer says", f"{length} bytes", rebuild)
    return metadata_length, elf_length, weights_length


def _check_digest(found: bytes, data: memoryview, where: str) -> None:
    if found != data[-_DIGEST:]:
        raise ArtifactError(
            where,
            "contents that match the SHA-256 in the footer",
            "other contents: the file was altered or damaged",
            "copy the file again from where it was built, or build it anew",
        )


def _parse_metadata(text: bytes, where: str) -> Mapping[str, Any]:
    def refuse(found: str) -> ArtifactError:
        fix = "build the library anew with this release of forge-pipeline"
        return ArtifactError(f"metadata of {where}", "a canonical JSON object", found, fix)

    try:
        metadata = json.loads(text)
        canonical = canonical_json(metadata)  # refuses NaN, infinities and lone surrogates, which loads lets through
    except (ValueError, RecursionError) as error:
        raise refuse(f"unreadable text ({error})") from error
    if not isinstance(metadata, dict):
        raise refuse(f"a JSON {type(metadata).__name__}")
    if canonical != text:
        raise refuse("JSON in another spelling, or with a name used twice")
    return metadata
