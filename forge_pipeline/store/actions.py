"""The action index: from an action key to the objects that the action gave, in records that carry a checksum."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forge_pipeline.config import bind
from forge_pipeline.content import NotPlainError
from forge_pipeline.digest import canonical_json, digest_bytes
from forge_pipeline.errors import ConfigError
from forge_pipeline.store.disk import ACTIONS, MAX_RECORD, WITHHELD, Damage, Disk, is_digest, refusing
from forge_pipeline.store.vault import Vault

_SOUND = "a record of this action with its checksum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What was built for ``key``: digest and size in bytes by file name, how long it took, and its report (JSON)."""

    key: str
    outputs: dict[str, str]
    sizes: dict[str, int]
    seconds: float
    report: dict[str, Any]


class DamagedRecordError(ValueError):
    """The bytes are no record of the action asked for; the message says what they are instead."""


def encode(action: Action) -> bytes:
    """Return the record: one line of canonical JSON, then one with the SHA-256 of the first.

    Raises TypeError or ValueError when the report has no canonical JSON form.
    """
    line = canonical_json(asdict(action)) + b"\n"
    return line + digest_bytes(line).encode() + b"\n"


def decode(record: bytes, key: str) -> Action:
    """Return the action in ``record``, after checking the sum, and then every field: a remote's is anybody's.

    Raises DamagedRecordError.
    """
    line, checksum = record[:-65], record[-65:]
    if checksum != digest_bytes(line).encode() + b"\n":
        raise DamagedRecordError(f"{len(record)} bytes whose checksum is wrong")
    try:
        action = bind(Action, json.loads(line), where="record")
        canonical = encode(action) == record
    except (ValueError, RecursionError, ConfigError) as error:
        raise DamagedRecordError("another form") from error
    if not canonical:
        raise DamagedRecordError("another form")
    if action.key != key:
        raise DamagedRecordError(f"the record of action {action.key}")
    names = action.outputs.keys()
    if names != action.sizes.keys() or not all(map(_is_file_name, names)):
        raise DamagedRecordError("outputs that are not plain file names with a size")
    if not all(map(is_digest, action.outputs.values())):
        raise DamagedRecordError("outputs without a digest")
    return action


def _is_file_name(name: str) -> bool:
    return name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"}


class Index:
    """The records of one store. Raises StoreError where they cannot be read or written."""

    def __init__(self, disk: Disk, vault: Vault) -> None:
        self._disk, self._vault = disk, vault

    def path(self, key: str) -> Path:
        """Return where the record is, or would be."""
        return self._disk.slot(ACTIONS, key)

    def get(self, key: str) -> Action | Damage | None:
        """Return the action, or what was wrong with its record (which is then in quarantine); None without one."""
        slot = self.path(key)
        try:
            return self._read(slot, key)
        except DamagedRecordError:
            pass
        with refusing(slot), self._disk.naming():
            try:
                return self._read(slot, key)  # again: another process may have put a sound one in its place
            except DamagedRecordError as error:
                return Damage(path=slot, expected=_SOUND, found=str(error), moved_to=self._disk.set_aside(slot))

    def put(self, action: Action) -> None:
        """Write the record, in the place of any other."""
        record = self._vault.vouched(encode(action))
        with self._disk.draft() as draft:
            draft.write(record)
            draft.place(self.path(action.key))

    def drop(self, action: Action) -> None:
        """Move the record of ``action`` to quarantine, unless another has taken its place."""
        slot = self.path(action.key)
        with refusing(slot), self._disk.naming(), suppress(DamagedRecordError):
            if self._read(slot, action.key) == action:
                self._disk.set_aside(slot)

    def withhold(self, key: str) -> None:
        """Note that the action is not to leave this machine."""
        slot = self._disk.slot(WITHHELD, key)
        if self._disk.read_only is None and not slot.exists():
            with self._disk.draft() as draft:
                draft.place(slot)

    def is_withheld(self, key: str) -> bool:
        """Say whether the action is not to leave this machine."""
        return self._disk.slot(WITHHELD, key).exists()

    def touch(self, key: str) -> None:
        """Note that the action was used now. Another user's record, or one just moved, keeps its time."""
        if self._disk.read_only is not None:
            return
        with suppress(PermissionError, FileNotFoundError):
            os.utime(self.path(key))

    def used(self, key: str) -> float:
        """Return when the action was last used, in seconds since the epoch."""
        with refusing(self.path(key)):
            return self.path(key).lstat().st_mtime

    def _read(self, slot: Path, key: str) -> Action | None:
        try:
            with os.fdopen(self._disk.opened(slot), "rb") as stream:
                if os.fstat(stream.fileno()).st_size > MAX_RECORD:
                    raise DamagedRecordError("a file that is too large for one")
                content = stream.read(MAX_RECORD)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except NotPlainError as error:
            raise DamagedRecordError(error.strerror) from error
        except OSError as error:  # a medium that fails
            raise DamagedRecordError(f"a file that cannot be read ({error.strerror})") from error
        try:
            record = self._vault.record(content)
        except ValueError as error:
            raise DamagedRecordError(str(error)) from error
        return decode(record, key)
