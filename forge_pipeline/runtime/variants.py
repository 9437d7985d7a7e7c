"""One library for several CPUs of a family: the code and program of each, and one copy of the weights that they share.

    [ELF parts, each at a multiple of 4096] [weights] [table] [programs] [metadata, a list] [footer]

The parts of the file are those of ``bundle``; the table, at the start of the program's part, says where in them a
variant's lie. Weights are kept by their content: those that two variants pack alike are there once. docs/format.md
is the reference; ``runtime/src/variants.zig`` reads it.
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forge_pipeline.content import Buffer, FileRange, OpenFile, in_memory
from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import ArtifactError, ConfigError
from forge_pipeline.runtime.bundle import LINE, PAGE, WITH_VARIANTS, Library, framed, metadata_of_variants

LIMIT = 16
"""Of variants in a file."""

_ROW = struct.Struct(">48s6Q")  # name, and for code, program and metadata: offset in the file's part, and length
_NAME = 48
_WORD = struct.Struct("<q")
_PROGRAM_HEAD = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """The file of a library with variants, and what it has in common: the metadata beside the file."""

    file: bytes | FileRange = field(repr=False)
    metadata: Mapping[str, Any]

    @classmethod
    def from_file(cls, path: Path) -> Combined:
        """Return the library of a file, which stays there. Raises ArtifactError, and OSError."""
        file = OpenFile.of(path)
        with _reading():
            metadata = _common(metadata_of_variants(file, str(path)))
        return cls(file=FileRange(file, 0, file.size), metadata=metadata)

    @property
    def tags(self) -> tuple[str, ...]:
        """The variants' names, in the order in which a CPU gets the first that it runs."""
        return tuple(str(target["tag"]) for target in self.metadata["variants"])

    def content(self) -> bytes | FileRange:
        """Return the file."""
        return self.file

    def metadata_bytes(self) -> bytes:
        """Return the metadata as canonical JSON."""
        return canonical_json(dict(self.metadata))


def combine(libraries: Sequence[Library]) -> Combined:
    """Return one library with ``libraries`` as variants, named by their targets' tags. Equal ones give equal bytes.

    A CPU gets the first that it runs: those that need more of its flags come first, and of equal ones that given
    first. Raises ConfigError for fewer than two or more than ``LIMIT``, two of one name, one without a program, and
    for what is not the same model with the same interface for CPUs of one family; ArtifactError for a library whose
    digest is sound and whose tables are not.
    """
    with _reading():
        return _combined(_checked(libraries))


def _combined(libraries: Sequence[Library]) -> Combined:
    ordered = sorted(libraries, key=lambda library: -len(library.metadata["target"]["cpu_flags"]))
    weights = _Weights()
    moved = [_moved(library, weights) for library in ordered]
    elf, programs, metadata = _Parts(PAGE), _Parts(LINE, start=_ROW.size * len(moved)), _Parts(1, start=1)
    rows = b""
    for library in moved:
        places = (elf.add(library.elf), programs.add(library.program), metadata.add(library.metadata_bytes(), b","))
        rows += _ROW.pack(_name(library), *(number for place in places for number in place))
    listed = b"[" + metadata.joined()[:-1] + b"]"
    parts = (elf.joined(), weights.joined(), rows + programs.joined(), listed)
    return Combined(
        file=b"".join(framed(*parts, variants=len(moved))), metadata=_common([library.metadata for library in ordered])
    )


def _common(variants: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return what all have in common, and each one's target; ``target`` is that of any CPU that opens the file."""
    first = variants[0]
    targets = [metadata["target"] for metadata in variants]
    key = hashlib.sha256(canonical_json([metadata["stage_key"] for metadata in variants])).hexdigest()
    return {
        **{name: first[name] for name in ("fingerprint", "inputs", "outputs", "tools")},
        "format": WITH_VARIANTS,
        "stage_key": key,
        "uuid": str(uuid.uuid5(uuid.UUID(first["uuid"]), key)),
        "target": {"tag": ",".join(target["tag"] for target in targets), "triple": targets[-1]["triple"]},
        "variants": targets,
    }


class _Parts:
    """Parts one after the other, each at a multiple of ``alignment``; ``start`` bytes are before the first."""

    def __init__(self, alignment: int, *, start: int = 0) -> None:
        self._alignment, self._size = alignment, start
        self._pieces: list[bytes] = []

    def add(self, part: Buffer, behind: bytes = b"") -> tuple[int, int]:
        """Return where the part lies, and its length."""
        padding = bytes(-self._size % self._alignment)
        offset = self._size + len(padding)
        self._pieces += [padding, bytes(part), behind]
        self._size = offset + len(part) + len(behind)
        return offset, len(part)

    def joined(self) -> bytes:
        """Return all of them."""
        return b"".join(self._pieces)


class _Weights:
    """Arrays by their content, each once, at multiples of 64."""

    def __init__(self) -> None:
        self._parts = _Parts(LINE)
        self._places: dict[bytes, int] = {}

    def place(self, data: Buffer) -> int:
        """Return where the array lies, which is added unless it is there."""
        digest = hashlib.sha256(data).digest()
        if digest not in self._places:
            self._places[digest], _ = self._parts.add(data)
        return self._places[digest]

    def joined(self) -> bytes:
        """Return all of them."""
        return self._parts.joined()


def _moved(library: Library, weights: _Weights) -> Library:
    """Return the library with its weights among ``weights``: its program and its metadata say where.

    Its code has the digest of that program, as it had that of the other.
    """
    program, data = bytearray(library.program), memoryview(in_memory(library.weights)).cast("B")
    places: dict[int, int] = {}
    left = len(data)
    at = _PROGRAM_HEAD + _WORD.size * (1 + _word(program, _PROGRAM_HEAD))  # behind the kernels
    for row in range(_word(program, at)):
        where = at + _WORD.size * (1 + 2 * row)
        offset, size = _word(program, where), _word(program, where + _WORD.size)
        if not (0 <= offset <= offset + size <= len(data) and size <= left):
            raise ValueError("arrays that are not in the weights, or more than are")
        left -= size
        places[offset] = weights.place(data[offset : offset + size])
        _WORD.pack_into(program, where, places[offset])
    elf = bytes(library.elf).replace(hashlib.sha256(library.program).digest(), hashlib.sha256(program).digest())
    entries = [{**entry, "offset": places[entry["offset"]]} for entry in library.metadata["weights"]]
    return replace(library, elf=elf, program=bytes(program), metadata={**library.metadata, "weights": entries})


def _word(program: bytearray, at: int) -> int:
    return int(_WORD.unpack_from(program, at)[0])


def _name(library: Library) -> bytes:
    name = str(library.metadata["target"]["tag"]).encode()
    if len(name) >= _NAME:
        raise _refused(f"a target's name of at most {_NAME - 1} bytes", f"{len(name)}", "give it a shorter one")
    return name


def _checked(libraries: Sequence[Library]) -> Sequence[Library]:
    if not 2 <= len(libraries) <= LIMIT:
        raise _refused(f"2 to {LIMIT} libraries", f"{len(libraries)}", "name the libraries of several targets")
    if not all(len(library.program) for library in libraries):
        raise _refused("libraries for CPUs", "one for another device", "leave it out")
    tags = [library.metadata["target"]["tag"] for library in libraries]
    if len({*tags}) != len(tags):
        raise _refused("a target each", f"two of {max(tags, key=tags.count)}", "name each once")
    families = {library.metadata["target"]["triple"].partition("-")[0] for library in libraries}
    if len(families) > 1:
        found = " and ".join(sorted(families))
        raise _refused("CPUs of one family", found, "deliver a library for each family: no machine runs both")
    for what in ("fingerprint", "inputs", "outputs", "quantization"):
        if len({canonical_json({"": library.metadata.get(what)}) for library in libraries}) > 1:
            fix = "build all from the same file with the same options, but for the target"
            raise _refused("one model", f"libraries whose {what} differ", fix)
    return libraries


@contextmanager
def _reading() -> Iterator[None]:
    """Turn what reading tables of another form raises into an ArtifactError: a digest can be mended by anybody."""
    try:
        yield
    except (struct.error, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ArtifactError(
            "combine", "libraries that forge-pipeline built", "one whose tables are of another form", "build it anew"
        ) from error


def _refused(expected: str, found: str, fix: str) -> ConfigError:
    return ConfigError("combine", expected, found, fix)
