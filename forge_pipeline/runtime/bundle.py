"""The library file: one ELF shared object that also carries weights, program, metadata and its own digest.

    [ELF] [zeros to a multiple of 4096] [weights] [zeros to a multiple of 64] [program] [metadata] [footer, 96 bytes]

A dynamic linker maps what the ELF headers name and never looks behind them, so the file stays an ordinary
shared object to ``dlopen`` and ``objdump``, while the footer lets the runtime notice a truncated or altered
file before any byte of it is executed. docs/format.md is the reference for auditors.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from forge_pipeline.content import Buffer, Content, FileRange, Made, OpenFile, in_memory, pieces
from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import ArtifactError

MAGIC = b"\x89MLLIB\r\n"
VERSION = 2
WITH_VARIANTS = 3
"""The version of a library for several CPUs, which `variants` writes."""
PAGE = 4096
"""Alignment of the weights in the file, so that a mapping of the file maps them too."""
LINE = 64
"""Alignment of the program in the file: its constants are read in place."""

_HEAD = struct.Struct(">8sHHIQQQ24s")  # magic, version, reserved, lengths of metadata, ELF, weights, program, reserved
_DIGEST = hashlib.sha256().digest_size
FOOTER = _HEAD.size + _DIGEST
OLD_FOOTER = 64
"""The length of the footer of format 1, which is told apart from what is no library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A compiled model for one target: machine code, interface, weights where they are kept apart, and program.

    The weights may be a range of a file, to be read when they are needed. The program says which kernels to run, on
    what; it is empty for a GPU, whose library TVM's own runtime loads. ``layers`` names what each kernel computes,
    at each place that calls it, for people who build it: no part of the file.
    """

    elf: Buffer = field(repr=False)
    metadata: Mapping[str, Any]
    weights: Buffer | FileRange = field(default=b"", repr=False)
    program: Buffer = field(default=b"", repr=False)
    layers: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict, repr=False, compare=False)

    def metadata_bytes(self) -> bytes:
        """Return the metadata as canonical JSON, exactly as it stands in the file."""
        return canonical_json(dict(self.metadata))

    def to_bytes(self) -> bytes:
        """Return the file. The same parts always give the same bytes."""
        return b"".join(self._pieces())

    def content(self) -> Content:
        """Return the file as ``to_bytes`` does; where the weights are in a file, to be read in pieces."""
        if not isinstance(self.weights, FileRange):
            return self.to_bytes()
        lengths = _Lengths(len(self.metadata_bytes()), len(self.elf), len(self.weights), len(self.program))
        return Made(lengths.file, self._pieces)

    def _pieces(self) -> Iterator[Buffer]:
        return framed(self.elf, self.weights, self.program, self.metadata_bytes())

    @classmethod
    def from_file(cls, path: Path) -> Library:
        """Do as ``from_bytes`` does with a file, whose weights stay there. Raises ArtifactError, and OSError."""
        file, where = OpenFile.of(path), str(path)
        size = file.size
        data = memoryview(mmap.mmap(file.descriptor, 0, access=mmap.ACCESS_READ) if size else b"")
        lengths = _lengths(data, where)
        digest = hashlib.sha256()
        for piece in FileRange(file, 0, size - _DIGEST).pieces():
            digest.update(piece)
        _check_digest(digest.digest(), data, where)
        return cls(
            elf=bytes(data[: lengths.elf]),
            metadata=_parse_metadata(bytes(data[lengths.behind_program : -FOOTER]), where),
            weights=FileRange(file, lengths.before_weights, lengths.weights),
            program=bytes(data[lengths.before_program : lengths.behind_program]),
        )

    @classmethod
    def from_bytes(cls, buffer: Buffer, *, where: str = "model library") -> Library:
        """Return a copy of the parts after checking every byte of the file.

        Raises ArtifactError, naming ``where`` the bytes come from, when the file is truncated, extended,
        altered, of another format version, or no library at all. ``from_bytes(data).to_bytes() == data``.
        """
        view = cls.view(buffer, where=where)
        weights, program = bytes(in_memory(view.weights)), bytes(view.program)
        return cls(elf=bytes(view.elf), metadata=view.metadata, weights=weights, program=program)

    @classmethod
    def view(cls, buffer: Buffer, *, where: str = "model library", digest: bytes | None = None) -> Library:
        """Do as ``from_bytes`` does, with ``elf``, ``weights`` and ``program`` as read-only windows onto ``buffer``.

        ``digest`` is the SHA-256 of all before the last 32 bytes, if it is known.
        """
        data = memoryview(buffer).toreadonly().cast("B")
        lengths = _lengths(data, where)
        _check_digest(digest or hashlib.sha256(data[:-_DIGEST]).digest(), data, where)
        return cls(
            elf=data[: lengths.elf],
            metadata=_parse_metadata(bytes(data[lengths.behind_program : -FOOTER]), where),
            weights=data[lengths.before_weights : lengths.before_weights + lengths.weights],
            program=data[lengths.before_program : lengths.behind_program],
        )


def framed(
    elf: Buffer, weights: Buffer | FileRange, program: Buffer, metadata: bytes, *, variants: int = 0
) -> Iterator[Buffer]:
    """Yield the file of these parts; with ``variants``, how many there are, it is one of format 3."""
    lengths = _Lengths(len(metadata), len(elf), len(weights), len(program))
    padded = (elf, bytes(lengths.after_elf), weights, bytes(lengths.after_weights), program)
    digest = hashlib.sha256()
    version = WITH_VARIANTS if variants else VERSION
    parts: tuple[Content, ...] = (*padded, metadata, _HEAD.pack(MAGIC, version, variants, *lengths, b""))
    for part in parts:
        for piece in pieces(part):
            digest.update(piece)
            yield piece
    yield digest.digest()


class _Lengths(NamedTuple):
    """The lengths of a library's parts, in the order of the footer, and what follows from them."""

    metadata: int
    elf: int
    weights: int
    program: int

    @property
    def after_elf(self) -> int:
        """Zeros between the ELF part and the weights."""
        return -self.elf % PAGE

    @property
    def before_weights(self) -> int:
        """Where the weights start."""
        return self.elf + self.after_elf

    @property
    def after_weights(self) -> int:
        """Zeros between the weights and the program."""
        return -self.weights % LINE

    @property
    def before_program(self) -> int:
        """Where the program starts."""
        return self.before_weights + self.weights + self.after_weights

    @property
    def behind_program(self) -> int:
        """Where the metadata start."""
        return self.before_program + self.program

    @property
    def file(self) -> int:
        """The length of the whole."""
        return self.behind_program + self.metadata + FOOTER


def _lengths(data: memoryview, where: str) -> _Lengths:
    """Return the lengths of all parts; they account for the file to the last byte, and zeros lie between them."""
    lengths = check_end(data[-FOOTER:], len(data), where)
    before_weights, before_program = lengths.before_weights, lengths.before_program
    between = data[lengths.elf : before_weights], data[before_weights + lengths.weights : before_program]
    if any(map(any, between)):
        expected, fix = "zeros between its parts, where the footer says", "copy the file again, or build it anew"
        raise ArtifactError(where, expected, "other bytes", fix)
    return lengths


def has_variants(footer: Buffer) -> bool:
    """Tell whether a file's last bytes are those of a library for several CPUs."""
    return bytes(footer[-FOOTER:])[: len(MAGIC) + 2] == MAGIC + WITH_VARIANTS.to_bytes(2)


def check_end(footer: Buffer, length: int, where: str, version_wanted: int = VERSION) -> _Lengths:
    """Return the lengths of the parts of a file that is ``length`` bytes long, from its last ones."""
    expected = "a model library: an ELF file with a forge-pipeline footer"
    rebuild = "copy the file again from where it was built, or build it anew"
    if bytes(footer[-OLD_FOOTER:])[: len(MAGIC) + 2] == MAGIC + b"\0\1":
        fix = "build it anew with this release of forge-pipeline, or load it with the one that built it"
        raise ArtifactError(where, f"library format {VERSION}", "format 1, of an older release", fix)
    if len(footer) < FOOTER:
        raise ArtifactError(where, expected, f"{len(footer)} bytes, less than the footer alone", rebuild)
    magic, version, reserved, *found, zeros = _HEAD.unpack(footer[:-_DIGEST])
    if magic != MAGIC:
        raise ArtifactError(where, expected, "no footer at its end: truncated, or another kind of file", rebuild)
    if version == WITH_VARIANTS != version_wanted:
        fix = "name a library for one CPU, such as those that it was made of"
        raise ArtifactError(where, "a library for one CPU", "one with variants for several", fix)
    if version != version_wanted or (reserved != 0) != (version == WITH_VARIANTS) or any(zeros):
        raise ArtifactError(
            where,
            f"library format {version_wanted}",
            f"format {version}" if version != version_wanted else "reserved fields that are not 0",
            "load it with the release of forge-pipeline that built it, or build it anew",
        )
    lengths = _Lengths(*found)
    if lengths.file != length:
        raise ArtifactError(where, f"{lengths.file} bytes, as the footer says", f"{length} bytes", rebuild)
    return lengths


def metadata_of_variants(file: OpenFile, where: str) -> list[Mapping[str, Any]]:
    """Return the metadata of each variant of a library for several CPUs, of which every byte is checked first.

    Raises ArtifactError, and OSError.
    """
    whole, digest = FileRange(file, 0, file.size), hashlib.sha256()
    end = b"".join(FileRange(file, max(0, file.size - FOOTER), min(FOOTER, file.size)).pieces())
    lengths = check_end(end, file.size, where, WITH_VARIANTS)
    for piece in FileRange(file, 0, file.size - _DIGEST).pieces():
        digest.update(piece)
    _check_digest(digest.digest(), memoryview(end), where)
    text = b"".join(FileRange(file, lengths.behind_program, len(whole) - FOOTER - lengths.behind_program).pieces())
    return list(_parse_metadata(b'{"":' + text + b"}", where)[""])


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
