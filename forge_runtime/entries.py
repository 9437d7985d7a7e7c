"""Functions of a library for sizes that were known when it was compiled, and which of them takes a call.

A library has the function `main`, for any size of its named extents, and beside it entries: functions for some of them
fixed. Where `main` itself is an entry, the library serves the sizes of its entries and no others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge_runtime.errors import ArtifactError

MAIN = "main"

Sizes = Mapping[str, int]
"""The size of each named extent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A function, and the sizes that it was compiled for; an extent without one may have any."""

    function: str
    extents: Sizes

    def takes(self, sizes: Sizes) -> bool:
        """Return whether a call of these sizes is this entry's."""
        return all(sizes.get(name) == size for name, size in self.extents.items())

    def holds(self, sizes: Sizes) -> bool:
        """Return whether a call of these sizes would be this entry's, were it made larger."""
        return all(sizes.get(name, size + 1) <= size for name, size in self.extents.items())

    def growth(self, sizes: Sizes) -> float:
        """Return how many times as much there is to compute for a call that is made larger: at least 1."""
        return math.prod(size / sizes[name] for name, size in self.extents.items())

    def __str__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in sorted(self.extents.items())) or "any size"


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a library beside `main`, those that fix most extents first."""

    rows: tuple[Entry, ...]

    @classmethod
    def of(cls, metadata: Mapping[str, Any], *, where: str) -> Entries:
        """Read the metadata's table. Raises ArtifactError where it fixes what is no extent of an input."""
        table: list[Mapping[str, Any]] = list(metadata.get("entries", ()))
        names = {extent for row in metadata.get("inputs", ()) for extent in row["shape"] if isinstance(extent, str)}
        unknown = sorted({str(name) for row in table for name in row["extents"]} - names)
        if unknown:
            raise ArtifactError(
                f"metadata of {where}", "entries for extents of the inputs", ", ".join(unknown), "build it anew"
            )
        rows = [Entry(function=str(row["function"]), extents=dict(row["extents"])) for row in table]
        return cls(tuple(sorted(rows, key=lambda row: -len(row.extents))))

    @property
    def is_open(self) -> bool:
        """Whether sizes that no entry has are served too."""
        return all(row.function != MAIN for row in self.rows)

    @property
    def only(self) -> Sizes:
        """The sizes of one entry, where no others than those of entries are served; none else."""
        return {} if self.is_open else next(row.extents for row in self.rows if row.function == MAIN)

    def taking(self, sizes: Sizes) -> Entry | None:
        """Return the entry that serves a call of these sizes as they are."""
        return next((row for row in self.rows if row.takes(sizes)), None)

    def holding(self, sizes: Sizes) -> Entry | None:
        """Return the entry that serves a call of these sizes with the least added to them, of those that fix most."""
        fitting: Sequence[Entry] = [row for row in self.rows if row.holds(sizes)]
        return min(fitting, key=lambda row: (-len(row.extents), row.growth(sizes)), default=None)


NONE = Entries(())
"""Those of a library that has `main` alone."""
