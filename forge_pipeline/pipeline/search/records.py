"""The folder of a search: what it searches, a record for each finished trial, and what came of all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from forge_pipeline.errors import ForgeError, UsageError
from forge_pipeline.pipeline.console import warn
from forge_pipeline.pipeline.deliver import prepare, write_atomically

SEARCH, TRIALS, TRIAL = "search.json", "trials", "trial.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A finished trial. ``deliveries`` are folders below that of the search, ``built`` the stages that were no hits.

    ``values`` are the texts of what varies; ``reason`` says why it failed, None where it did not.
    """

    number: int
    values: dict[str, str]
    overrides: list[str]
    figures: dict[str, dict[str, float]]
    reason: str | None
    seconds: float
    deliveries: dict[str, str] = field(default_factory=dict)
    built: list[str] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder, held by this process alone."""

    path: Path

    def place(self, number: int) -> Path:
        """Return where a trial delivers."""
        return self.path / TRIALS / f"{number:03}"

    def add(self, trial: Trial) -> None:
        """Note a finished trial: the whole record is there, or nothing of it."""
        write_json(self.place(trial.number) / TRIAL, asdict(trial))

    def trials(self) -> list[Trial]:
        """Return the finished trials in their order. Raises ForgeError for a record that is none."""
        found = sorted(self.path.glob(f"{TRIALS}/*/{TRIAL}"))
        return sorted(map(_trial, found), key=lambda trial: trial.number)


@contextmanager
def opened(path: Path, searched: Mapping[str, Any]) -> Iterator[Folder]:
    """Hold the folder of the search that ``searched`` describes. Raises UsageError where it is another one's."""
    with prepare(path, on_wait=lambda: warn(f"another search works in {path}; waiting for it to end")):
        note = path / SEARCH
        if note.exists():
            before = _json(note)
            if before != searched:
                different = sorted(key for key in {*before, *searched} if before.get(key) != searched.get(key))
                raise UsageError(
                    where=f"hydra.sweeper.folder={path}",
                    expected="an empty folder, or that of the same search",
                    found=f"one of a search with another {', '.join(different)}",
                    fix="choose another folder, or remove that one",
                )
        else:
            write_json(note, searched)
        yield Folder(path)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` to be read by people, too."""
    write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True).encode() + b"\n")


def _trial(path: Path) -> Trial:
    try:
        return Trial(**_json(path))
    except TypeError as error:
        raise _damaged(path) from error


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _damaged(path) from error
    if not isinstance(value, dict):
        raise _damaged(path)
    return value


def _damaged(path: Path) -> ForgeError:
    return ForgeError(str(path), "a record of a search", "something else", "remove it: that trial is run again")
