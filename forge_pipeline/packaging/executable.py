"""`package=executable`: the native runtime's `forge-run` with an artifact inside, plain or encrypted: one static file.

The artifact is a segment of its own, which the system maps when it starts the program: nothing has to find or read a
file, so it works without /proc. The table of segments has no room for one more: a new one lies at the start of that
segment, where the system's auxiliary vector (AT_PHDR) points the program to it. The segment is as far from the start
of the memory as it is from the start of the file, since Linux before 5.18 takes that for granted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from forge_pipeline.content import Buffer, Content, FileRange, Made, pieces
from forge_pipeline.errors import TargetError
from forge_pipeline.runtime.native import native_runner
from forge_pipeline.target import Target

ARCHITECTURES: Final = ("x86_64", "aarch64", "riscv64")
PAGE: Final = 1 << 16
"""The largest page of these systems."""
ROOM: Final = 4096
"""From the start of the segment to the artifact: the table, then the mark."""
MARK: Final = b"FORGEART"
LOAD, TABLE, READ = 1, 6, 4
_ROW: Final = struct.Struct("<IIQQQQQQ")


class _Row(NamedTuple):
    """A row of an ELF file's table of segments."""

    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    size: int
    memory: int
    alignment: int


def package_executable(artifact: Content, target: Target) -> Content:
    """Return ``artifact`` inside the program that runs it. Raises TargetError where there is none for ``target``."""
    check_executable(target)
    return attached(native_runner(target.arch).read_bytes(), artifact)


def check_executable(target: Target) -> None:
    """Raise TargetError where there is no program for ``target``."""
    if target.kind != "llvm" or target.libc not in ("glibc", "bionic") or target.arch not in ARCHITECTURES:
        raise TargetError(
            where="package=executable",
            expected=f"a CPU of Linux or Android: {', '.join(ARCHITECTURES)}",
            found=f"{target.tag} ({target.triple})",
            fix="choose package=library, or package=objects on macOS and where there is no operating system",
        )


def inside(content: Content) -> Content:
    """Return the artifact that is in a program of ``package_executable``, or ``content`` where it is no program."""
    head = b"".join(islice(pieces(content), 1))[:64]
    if head[:4] != b"\x7fELF" or not isinstance(content, FileRange):
        return content
    (start,) = struct.unpack_from("<Q", head, 32)
    return FileRange(content.file, content.start + start + ROOM, len(content) - start - ROOM)


def attached(program: Buffer, artifact: Content) -> Content:
    """Return ``program``, a static ELF file of 64 bits, with ``artifact`` as one more segment."""
    data = bytes(program)
    (start,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    rows = [_Row(*_ROW.unpack_from(data, start + size * number)) for number in range(count)]
    loads = [row for row in rows if row.kind == LOAD]
    base = loads[0].address - loads[0].offset
    end = max(len(data), *(row.address + row.memory - base for row in loads))
    offset = -(-end // PAGE) * PAGE
    total = ROOM + len(artifact)
    new = _Row(LOAD, READ, offset, base + offset, base + offset, total, total, PAGE)
    place = {"offset": offset, "address": base + offset, "physical": base + offset}
    table = {"size": _ROW.size * (count + 1), "memory": _ROW.size * (count + 1)}
    moved = [row._replace(**place, **table) if row.kind == TABLE else row for row in rows]
    head = bytearray(data)
    struct.pack_into("<Q", head, 32, offset)
    struct.pack_into("<H", head, 56, count + 1)
    rows_bytes = b"".join(_ROW.pack(*row) for row in (*moved, new))
    before = bytes(head).ljust(offset, b"\0") + rows_bytes.ljust(ROOM - len(MARK), b"\0") + MARK

    def made() -> Iterator[Buffer]:
        yield before
        yield from pieces(artifact)

    return Made(len(before) + len(artifact), made)
