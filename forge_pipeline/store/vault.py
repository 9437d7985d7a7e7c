"""How objects and records lie on the disk: as they are, or under a key that is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from forge_pipeline.content import Buffer

Write = Callable[[Buffer], None]


class Writer(Protocol):
    """Takes the bytes of an object, in pieces."""

    def write(self, piece: Buffer) -> None:
        """Take the next ones."""

    def end(self) -> None:
        """Take no more."""


class Vault(Protocol):
    """What stands between objects, records and their files."""

    @property
    def seals(self) -> bool:
        """Whether the files of objects hold something else than their bytes."""

    def mark(self) -> bytes:
        """Return what a new store keeps, to know the key again; empty without one."""

    def admits(self, mark: bytes) -> bool:
        """Say whether this opens a store with this mark, empty where it has none."""

    def writer(self, write: Write) -> Writer:
        """Return what gives to ``write`` what is to lie on the disk."""

    def plain(self, descriptor: int) -> int:
        """Exchange an open file of the store for one with the object's bytes, both at their beginning.

        Raises OSError, having closed it, where it is none of this vault.
        """

    def length(self, size: int) -> int:
        """Return how long the file of an object of ``size`` bytes is."""

    def vouched(self, record: bytes) -> bytes:
        """Return what is to lie on the disk for a record."""

    def record(self, vouched: bytes) -> bytes:
        """Return the record of a file. Raises ValueError, which says what was found, where it is none of this vault."""


class Plain:
    """Leaves objects and records as they are."""

    seals = False

    def mark(self) -> bytes:
        """Return nothing."""
        return b""

    def admits(self, mark: bytes) -> bool:
        """Say whether the store is one without a key."""
        return not mark

    def writer(self, write: Write) -> Writer:
        """Return what passes on what it is given."""
        return _Through(write)

    def plain(self, descriptor: int) -> int:
        """Return the file itself."""
        return descriptor

    def length(self, size: int) -> int:
        """Return ``size``."""
        return size

    def vouched(self, record: bytes) -> bytes:
        """Return the record."""
        return record

    def record(self, vouched: bytes) -> bytes:
        """Return the file."""
        return vouched


class _Through:
    def __init__(self, write: Write) -> None:
        self._write = write

    def write(self, piece: Buffer) -> None:
        self._write(piece)

    def end(self) -> None:
        """Nothing is held back."""
