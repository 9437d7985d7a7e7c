"""Whole stores: what is here sent to a remote, what is there fetched or removed, in parallel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

from forge_pipeline.store.actions import Action, DamagedRecordError, decode
from forge_pipeline.store.disk import ACTIONS, OBJECTS, is_digest
from forge_pipeline.store.notary import divided
from forge_pipeline.store.remote import Remote
from forge_pipeline.store.store import Store

T = TypeVar("T")
R = TypeVar("R")
WIDTH = 4
"""Processes that read, and that write, at the same time."""

GRACE = 86_400.0
"""Seconds for which an object without a record stays in a remote: an upload sends its record last."""

Progress = Callable[[int, int], object]
"""Told how many of how many are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An action in a remote, when it was written (seconds since the epoch, 0: unknown), and its record's bytes."""

    action: Action
    written: float
    record: int


@dataclass(slots=True, kw_only=True)
class Moved:
    """How many actions were asked about, how many moved, and their bytes."""

    asked: int = 0
    moved: int = 0
    bytes: int = 0


class _Counter:
    """Counts what is done, from any thread."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._done, self._total, self._progress = 0, total, progress
        self._lock = Lock()

    def add(self, more: Callable[[], object] = lambda: None) -> None:
        """Count one, and do ``more`` alone."""
        with self._lock:
            self._done += 1
            more()
            self._progress(self._done, self._total)


def push(store: Store, remote: Remote, progress: Progress) -> Moved:
    """Send every action that may be sent and that the remote lacks. Raises StoreError."""
    actions = store.to_send()
    moved = Moved(asked=len(actions))
    counter = _Counter(len(actions), progress)

    def note(action: Action, sent: bool) -> None:
        def add() -> None:
            moved.moved += sent
            moved.bytes += sum(action.sizes.values()) if sent else 0

        counter.add(add)

    for action in actions:
        store.send(action, done=lambda sent, action=action: note(action, sent))  # type: ignore[misc]
    remote.flush()
    return moved


def pull(store: Store, remote: Remote, progress: Progress) -> Moved:
    """Fetch every action that is not here. Raises StoreError."""
    here = {action.key for action in store.actions()}
    keys = [key for key, _, _ in _records(remote) if key not in here]
    counter, moved = _Counter(len(keys), progress), Moved(asked=len(keys))

    def fetch(key: str) -> Action | None:
        action = store.lookup(key)
        counter.add()
        return action

    for action in _parallel(fetch, keys):
        if action is not None:
            moved.moved += 1
            moved.bytes += sum(action.sizes.values())
    return moved


def listed(remote: Remote, progress: Progress) -> list[Kept]:
    """Return the actions of a remote, signed by whomever or not, the newest first. Raises StoreError.

    A damaged record is told, and is none.
    """
    entries = _records(remote)
    counter = _Counter(len(entries), progress)

    def read(entry: tuple[str, int, float]) -> Kept | None:
        key, size, written = entry
        record = remote.record(key)
        counter.add()
        try:
            if record is None:
                return None
            return Kept(action=decode(divided(record)[0], key), written=written, record=size)
        except DamagedRecordError:
            remote.distrust(ACTIONS, key)
            return None

    found = [kept for kept in _parallel(read, entries) if kept is not None]
    return sorted(found, key=lambda kept: (-kept.written, kept.action.key))


def collect(
    remote: Remote, progress: Progress, *, keep_bytes: int | None = None, keep_seconds: float | None = None
) -> tuple[int, int, int]:
    """Remove the actions that were written too long ago, or do not fit, and then what no record names.

    Records go first, and objects that are younger than GRACE stay, so that whoever reads or sends meanwhile meets a
    miss at worst. Return how many actions and files were removed, and the files' bytes. Raises StoreError.
    """
    now = time.time()
    kept: dict[str, int] = {}
    dropped, total = [], 0
    for item in listed(remote, progress):
        added = {digest: item.action.sizes[name] for name, digest in item.action.outputs.items() if digest not in kept}
        old = keep_seconds is not None and now - item.written > keep_seconds
        if old or (keep_bytes is not None and total + sum(added.values()) > keep_bytes):
            dropped.append(f"{ACTIONS}/{item.action.key[:2]}/{item.action.key[2:]}")
        else:
            kept.update(added)
            total += sum(added.values())
    _remove(remote, dropped)
    ended = {name: size for area in (OBJECTS, "leases") for name, size, written in remote.names(area)
             if _digest(name) not in kept and now - written > GRACE}  # fmt: skip
    _remove(remote, ended)
    return len(dropped), len(ended), sum(ended.values())


def _remove(remote: Remote, names: Iterable[str]) -> None:
    remote.remove(names)
    remote.flush()


def _digest(name: str) -> str:
    return "".join(name.split("/")[-2:])


def _records(remote: Remote) -> list[tuple[str, int, float]]:
    """Return key, size and time of every record."""
    found = [(_digest(name), size, written) for name, size, written in remote.names(ACTIONS)]
    return [entry for entry in found if is_digest(entry[0])]


def _parallel(do: Callable[[T], R], items: Iterable[T]) -> list[R]:
    with ThreadPoolExecutor(WIDTH) as pool:
        return list(pool.map(do, items))
