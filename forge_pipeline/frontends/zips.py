"""Zip archives of strangers: looked through before anything is taken out of them."""

from __future__ import annotations

import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from forge_pipeline.errors import ModelError

MAX_ENTRIES: Final = 100_000
MAX_RATIO: Final = 100  # weights shrink by less than two; text of a graph by about twenty
SMALL: Final = 64 << 20  # bytes; what one entry may grow to whatever its ratio


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive once its directory was checked. Raises ModelError for a damaged, slipping or exploding one.

    Zip slip: an entry whose name leads out of the folder it is unpacked into, or a link. Zip bomb: one that grows by
    more than MAX_RATIO, or shares its bytes with another.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check(path, archive.infolist())
            yield archive
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ModelError(
            where=str(path),
            expected="a whole zip archive",
            found=f"a damaged one ({error})",
            fix="copy or export the model again",
        ) from error


def _check(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    if len(entries) > MAX_ENTRIES:
        raise _refused(path, f"{len(entries)} entries, more than {MAX_ENTRIES}")
    names: set[str] = set()
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        name = entry.filename
        shown = repr(name[:80])
        if name.startswith("/") or "\\" in name or ":" in name or ".." in name.split("/"):
            raise _refused(path, f"an entry that leads out of its folder: {shown}")
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise _refused(path, f"a link: {shown}")
        if name in names:
            raise _refused(path, f"two entries of one name: {shown}")
        if entry.flag_bits & 1:
            raise _refused(path, f"an encrypted entry: {shown}")
        if entry.file_size > SMALL and entry.file_size > MAX_RATIO * entry.compress_size:
            raise _refused(path, f"an entry that grows from {entry.compress_size} to {entry.file_size} bytes: {shown}")
        if entry.header_offset < end:
            raise _refused(path, f"entries that lie over each other, at {shown}")
        names.add(name)
        end = entry.header_offset + entry.compress_size
    if sum(entry.file_size for entry in entries) > max(SMALL, MAX_RATIO * path.stat().st_size):
        raise _refused(path, "a zip bomb: its entries add up to more than a hundred times its size")


def _refused(path: Path, found: str) -> ModelError:
    return ModelError(
        where=str(path),
        expected="an archive as a framework writes it",
        found=found,
        fix="it is damaged or hostile: get the model from its author again",
    )
