"""What a store notes of an action for people, beside its record: when and how it came here, of which model, and why.

A record is the same wherever the same is built. A note is of this store alone: it is sent nowhere, no key and no
output depends on it, and one that is missing or damaged is just not shown.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Literal

from forge_pipeline.config import bind
from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import ForgeError
from forge_pipeline.store.disk import NOTES, Disk

MAX_NOTE = 1 << 16
"""Bytes of a note; what is larger is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """``when``: seconds since the epoch; ``model``: the name of its file; ``reason``: why it was built, if it was."""

    came: Literal["built", "remote"]
    when: float
    model: str
    reason: str


class Notes:
    """The notes of one store."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def get(self, key: str) -> Note | None:
        """Return the note; None without a sound one."""
        try:
            with os.fdopen(self._disk.opened(self._disk.slot(NOTES, key)), "rb") as stream:
                return bind(Note, json.loads(stream.read(MAX_NOTE)), where="note")
        except (OSError, ValueError, RecursionError, ForgeError):
            return None

    def put(self, key: str, note: Note) -> None:
        """Write the note, in the place of any other; not into a store that can only be read."""
        if self._disk.read_only is None:
            with self._disk.draft() as draft:
                draft.write(canonical_json(asdict(note)))
                draft.place(self._disk.slot(NOTES, key))
