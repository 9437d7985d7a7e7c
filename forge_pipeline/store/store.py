"""The store: what was built once is not built again, and what was damaged is not delivered."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from forge_pipeline.content import Content
from forge_pipeline.errors import StoreError, UntrustedError
from forge_pipeline.store.actions import Action, DamagedRecordError, Index, decode, encode
from forge_pipeline.store.cas import Objects
from forge_pipeline.store.disk import ACTIONS, NOTES, OBJECTS, WITHHELD, Damage, Disk, Draft
from forge_pipeline.store.kernels import Kernels
from forge_pipeline.store.notary import Notary
from forge_pipeline.store.notes import Note, Notes
from forge_pipeline.store.vault import Plain, Vault

if TYPE_CHECKING:
    from forge_pipeline.store.remote import Remote

Contents = Mapping[str, Content]
Build = Callable[[], tuple[Contents, Mapping[str, Any]]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a collection removed from the store, and the bytes that stay. What was delivered is none of it.

    ``freed`` and ``kept`` are bytes of kernels, too.
    """

    actions: int
    objects: int
    freed: int
    kept: int


class Store:
    """An action cache over content-addressed objects, for any number of processes at once.

    ``on_damage`` receives one line for people when something was damaged (unless given, it is the log, as a warning);
    ``on_wait`` the key, before waiting for another process that builds it. ``remote`` is read through and written
    behind, and gets what is used here and not there; it stays its owner's to close. ``notary`` signs what goes there
    and decides which records are taken, by default all that are whole. ``vault`` seals the objects on this disk and
    vouches for its records, not for what goes to the remote. Close the store, or use it in a ``with`` block, to have
    uploads finished.
    Every method raises StoreError where the folder cannot be read or written, and ValueError for a key or digest that
    is none.
    """

    def __init__(
        self,
        root: Path,
        remote: Remote | None = None,
        *,
        on_damage: Callable[[str], None] = _log.warning,
        on_wait: Callable[[str], None] = lambda key: None,
        notary: Notary | None = None,
        vault: Vault | None = None,
    ) -> None:
        self._on_damage, self._on_wait = on_damage, on_wait
        self._notary = notary or Notary()
        self._remote = remote
        self._remote_has: set[str] = set()  # keys of which it is known
        self._fetched: set[str] = set()  # keys that came from there
        self._sizes: dict[str, int] = {}  # of all objects that an action gave, by digest: so much is taken of a remote
        self._disk = Disk(root, on_damage)
        self._vault = vault or Plain()
        try:
            self._disk.claim(self._vault)
        except BaseException:
            self._disk.close()
            raise
        self._objects = Objects(self._disk, self._vault)
        self._index, self._notes = Index(self._disk, self._vault), Notes(self._disk)
        self.kernels = Kernels(self._disk, self._vault, on_damage)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(StoreError) if error is not None else nullcontext():  # the first failure is the one to tell
            self.close(cancel=error is not None and not isinstance(error, Exception))  # somebody wants to end

    def close(self, *, cancel: bool = False) -> None:
        """Finish the uploads (with ``cancel``, drop them), and leave the store to others."""
        try:
            if self._remote is not None:
                self._remote.flush(cancel=cancel)
        finally:
            self._disk.close()

    def get_or_build(
        self,
        key: str,
        build: Build,
        *,
        accept: Callable[[Action], bool] = lambda action: True,
        share: Callable[[Container[str]], bool] = lambda names: True,
        confirm: Callable[[], None] = lambda: None,
    ) -> tuple[Action, bool]:
        """Return the action of ``key``, and whether it was there already; if not, ``build`` it and keep it.

        ``build`` returns the contents by file name, and a JSON report. Of all processes and threads that ask for one
        key, one builds, and the others wait for its result; if it fails or dies, the next one takes over. So do other
        machines, where the remote can hold leases. A result that ``accept`` refuses is built again and replaced. What
        ``share`` refuses, going by the names of its files, is not sent to the remote; what was not sent before is.
        ``confirm`` is called when what was built has been read for the last time, before it is recorded: what it raises
        is raised here, and nothing is recorded.
        """
        action = self.lookup(key)
        if action is not None and accept(action):
            return self._completed(action, share), True
        with self.building(key):
            action = self.lookup(key)
            if action is None:
                action = self._turn(key)
            try:
                if action is not None and accept(action):
                    return self._completed(action, share), True
                begun = time.perf_counter()
                contents, report = build()
                seconds = time.perf_counter() - begun
                return self.record(
                    key, contents, seconds=seconds, report=report, share=share(contents), confirm=confirm
                ), False
            finally:
                if self._remote is not None:
                    self._remote.pass_turn(key)

    def lookup(self, key: str) -> Action | None:
        """Return the action with all its objects verified, from here or from the remote; None when it is to be built.

        What is damaged is told, moved to quarantine and, if the remote has it, replaced. An action that stays
        incomplete is forgotten.
        """
        action = self._index.get(key)
        if isinstance(action, Damage):
            self._on_damage(f"damaged in the store: {action}")
            action = None
        if action is None:
            return self._lookup_remote(key)
        if not self._complete(action, owed=True):
            self._index.drop(action)
            return None
        self._index.touch(key)
        return action

    def peek(self, key: str) -> tuple[Action, bool] | None:
        """Return the action that `lookup` would most likely give, and whether it is here; objects are not looked at.

        None where there is none, here or in the remote, or an object of it is missing.
        """
        action = self._index.get(key)
        if isinstance(action, Damage):
            self._on_damage(f"damaged in the store: {action}")
        if isinstance(action, Action) and all(map(self._objects.has, action.outputs.values())):
            return action, True
        record = self._remote.record(key) if self._remote is not None else None
        try:
            return None if record is None else (decode(self._notary.opened(record), key), False)
        except (DamagedRecordError, UntrustedError):
            return None

    @property
    def is_sealed(self) -> bool:
        """Whether its objects can be read with a key alone."""
        return self._vault.seals

    def was_fetched(self, key: str) -> bool:
        """Say whether the action came from the remote while this store was open."""
        return key in self._fetched

    def note(self, key: str) -> Note | None:
        """Return what is noted of an action; None where nothing is."""
        return self._notes.get(key)

    def take_note(self, key: str, note: Note) -> None:
        """Note how an action came here, in the place of what was noted before."""
        self._notes.put(key, note)

    @contextmanager
    def building(self, key: str) -> Iterator[None]:
        """Be alone in building ``key``; look it up again inside. `get_or_build` does both."""
        with self._disk.building(key, lambda: self._on_wait(key)):
            yield

    def confirm(self, action: Action, names: Iterable[str]) -> None:
        """Raise StoreError where one of these outputs is not what it was when the action was looked up."""
        for name in names:
            damage = self._objects.check(action.outputs[name], action.sizes[name])
            if damage is not None:
                self._on_damage(f"damaged in the store: {damage}")
                raise StoreError(
                    where=str(damage.path),
                    expected="an object that stays as it is while it is read",
                    found=damage.found,
                    fix="run the command again: it is built anew, and nothing that was made of it was recorded",
                )

    def record(
        self,
        key: str,
        contents: Contents,
        *,
        seconds: float,
        report: Mapping[str, Any],
        share: bool = True,
        confirm: Callable[[], None] = lambda: None,
    ) -> Action:
        """Keep what was built, objects first, so that a record never points at what is not there yet.

        ``confirm`` is called between the two, see `get_or_build`. It is sent to the remote as well, unless ``share`` is
        false.
        Raises TypeError or ValueError when ``report`` has no canonical JSON form or a name is not a plain file name.
        """
        outputs = {}
        for name, data in sorted(contents.items()):
            outputs[name], damage = self._objects.put(data)
            if damage is not None:
                self._on_damage(f"damaged in the store: {damage}")
        sizes = {name: len(data) for name, data in contents.items()}
        record = encode(Action(key=key, outputs=outputs, sizes=sizes, seconds=float(seconds), report=dict(report)))
        confirm()
        if not share:
            self._index.withhold(key)
        action = decode(record, key)  # a built action equals the same one looked up: lists for tuples, keys in order
        self._index.put(action)
        self._note_sizes(action)
        if self._remote is not None and share:
            self.send(action, missing=False)
            self._remote_has.add(key)
        return action

    def path(self, digest: str) -> Path:
        """Return where an object is: a read-only file, verified when its action was looked up and not since.

        Of a sealed store, it is a file in memory that is there for as long as the store. Raises StoreError where that
        cannot be had.
        """
        path = self._objects.path(digest)
        if path is None:
            raise self._lost(digest)
        return path

    def read(self, digest: str) -> bytes:
        """Return an object's verified bytes. Raises StoreError when it is missing or damaged, and nowhere else."""
        data = self._objects.read(digest)
        if data is None and self._sound(digest):
            data = self._objects.read(digest)
        if data is None:
            raise self._lost(digest)
        return data

    def export(self, digest: str, destination: Path, *, size: int | None = None, private: bool = False) -> None:
        """Deliver an object as the read-only file ``destination``, in one step; see `Objects.export`.

        Its bytes are verified on the way, and they are the destination's own: to change it changes nothing here.
        Raises StoreError when the object is lost, or for the destination.
        """

        def delivered() -> bool:
            return self._objects.export(digest, destination, size=size, private=private)

        if not delivered() and not (self._sound(digest) and delivered()):
            raise self._lost(digest)

    def actions(self, most: int | None = None) -> list[Action]:
        """Return every action, or so many at most, the most recently used first. Objects are not verified."""
        used: dict[str, float] = {}
        for key in self._disk.digests(ACTIONS):
            with suppress(StoreError):  # another process has just moved it
                used[key] = self._index.used(key)
        found = []
        for key in sorted(used, key=lambda key: (-used[key], key))[:most]:
            action = self._index.get(key)
            if isinstance(action, Damage):
                self._on_damage(f"damaged in the store: {action}")
            elif action is not None:
                found.append(action)
        return found

    def to_send(self) -> list[Action]:
        """Return the actions that may leave this machine, those that are sound."""
        return [
            action
            for action in self.actions()
            if not self._index.is_withheld(action.key)
            and all(self._objects.check(digest, action.sizes[name]) is None for name, digest in action.outputs.items())
        ]

    def verify(self) -> list[Damage]:
        """Read everything through; move what is damaged to quarantine and return it, with what is missing."""
        actions = [(key, self._index.get(key)) for key in self._disk.digests(ACTIONS)]
        damaged = [action for _, action in actions if isinstance(action, Damage)]
        sound = [action for _, action in actions if isinstance(action, Action)]
        sizes = {digest: action.sizes[name] for action in sound for name, digest in action.outputs.items()}
        for digest in sorted(sizes.keys() | self._disk.digests(OBJECTS)):
            damage = self._objects.check(digest, sizes.get(digest))
            if damage is not None:
                damaged.append(damage)
        return [*damaged, *self.kernels.check()]

    def gc(
        self,
        *,
        keep_bytes: int | None = None,
        keep_seconds: float | None = None,
        keep: Callable[[Action], bool] = lambda action: True,
        keep_kernels: bool = True,
    ) -> Collected:
        """Remove actions unused for ``keep_seconds``, and the least recently used that do not fit ``keep_bytes``.

        Those that ``keep`` refuses go, too. Kernels get the room that actions leave, or none. Then objects of no
        action, what is in quarantine, and what killed processes left. What two actions share counts once. Raises
        StoreError, at once, while another process has the store open: nothing that a build relies on can go (this
        process must not be building either). The remote is left as it is.
        """
        if self._remote is not None:
            self._remote.flush()
        with self._disk.alone():
            now = time.time()
            kept: dict[str, int] = {}
            total = removed = freed = 0
            for action in self.actions():
                added = {digest: action.sizes[name] for name, digest in action.outputs.items() if digest not in kept}
                old = keep_seconds is not None and now - self._index.used(action.key) > keep_seconds
                if old or not keep(action) or (keep_bytes is not None and total + sum(added.values()) > keep_bytes):
                    freed += self._disk.remove(self._index.path(action.key))
                    removed += 1
                else:
                    kept.update(added)
                    total += sum(added.values())
            room = math.inf if keep_bytes is None else max(0, keep_bytes - total)
            unused = math.inf if keep_seconds is None else keep_seconds
            gone, stay = self.kernels.collect(keep_bytes=room if keep_kernels else -1, keep_seconds=unused)
            freed, total = freed + gone, total + stay
            orphans = [digest for digest in self._disk.digests(OBJECTS) if digest not in kept]
            freed += sum(self._disk.remove(self._objects.slot(digest)) for digest in orphans)
            for area in (WITHHELD, NOTES):
                for key in set(self._disk.digests(area)) - set(self._disk.digests(ACTIONS)):
                    self._disk.remove(self._disk.slot(area, key))
            freed += self._disk.clear_quarantine()
        return Collected(actions=removed, objects=len(orphans), freed=freed, kept=total)

    def _turn(self, key: str) -> Action | None:
        """Wait while another machine builds ``key``; return what it gave, or None when it is ours to build."""
        found: list[Action] = []

        def ready() -> bool:
            action = self._lookup_remote(key)
            found.extend([] if action is None else [action])
            return bool(found)

        if self._remote is not None:
            self._remote.turn(key, ready=ready, on_wait=lambda: self._on_wait(key))
        return found[0] if found else None

    def _completed(self, action: Action, share: Callable[[Container[str]], bool]) -> Action:
        """Send what is used here and is not in the remote, such as after a day without it."""
        if not share(action.outputs):
            self._index.withhold(action.key)
        elif self._remote is not None and action.key not in self._remote_has:
            self.send(action)
        return action

    def send(self, action: Action, done: Callable[[bool], object] = lambda sent: None, *, missing: bool = True) -> None:
        """Send an action that is sound here, signed; ``done`` is told whether it was.

        Where it may be ``missing`` in the remote, what is there already is left out.
        """
        if self._remote is not None:
            objects = {digest: partial(self._objects.shown, digest) for digest in action.outputs.values()}
            self._remote.upload(action.key, self._notary.sealed(encode(action)), objects, missing=missing, done=done)

    def _lookup_remote(self, key: str) -> Action | None:
        record = self._remote.record(key) if self._remote is not None else None
        if self._remote is None or record is None:
            return None
        try:
            action = decode(self._notary.opened(record), key)
        except DamagedRecordError:
            self._remote.distrust(ACTIONS, key)
            return None
        except UntrustedError as error:
            self._on_damage(
                f"not taken from the remote: action {key[:16]}: expected {error.expected}, found {error.found}"
            )
            return None
        if not self._complete(action, owed=False):
            return None
        self._index.put(action)
        self._remote_has.add(key)
        self._fetched.add(key)
        return action

    def _complete(self, action: Action, *, owed: bool) -> bool:
        self._note_sizes(action)
        # Every one is looked at, so that all that is damaged is told at once.
        sound = [self._sound(digest, owed=owed) for digest in action.outputs.values()]
        return all(sound)

    def _note_sizes(self, action: Action) -> None:
        self._sizes.update((digest, action.sizes[name]) for name, digest in action.outputs.items())

    def _sound(self, digest: str, *, owed: bool = True) -> bool:
        """Say whether the object is sound, or was fetched. ``owed``: that it is not there at all is damage too."""
        damage = self._objects.check(digest, self._sizes.get(digest))
        if damage is None:
            return True
        if owed or damage.moved_to is not None:
            self._on_damage(f"damaged in the store: {damage}")
        return self._fetch(digest)

    def _fetch(self, digest: str) -> bool:
        if self._remote is None or digest not in self._sizes:
            return False
        with self._disk.draft() as draft:
            digester = _Digester(draft, self._vault)
            if not self._remote.fetch(OBJECTS, digest, digester, limit=self._sizes[digest]):
                return False
            if digester.digest() != digest:
                self._remote.distrust(OBJECTS, digest)
                return False
            digester.end()
            draft.place(self._objects.slot(digest))
        return True

    def _lost(self, digest: str) -> StoreError:
        return StoreError(
            where=str(self._objects.slot(digest)),
            expected="the object that an action gave",
            found="none that is sound, here or in a remote",
            fix="run the command again: what is missing is built anew",
        )


class _Digester:
    """Writes a draft, and knows the digest of what it was given."""

    def __init__(self, draft: Draft, vault: Vault) -> None:
        self._draft, self._vault = draft, vault
        self._hasher, self._writer = hashlib.sha256(), vault.writer(draft.write)

    def write(self, piece: bytes) -> None:
        self._hasher.update(piece)
        self._writer.write(piece)

    def restart(self) -> None:
        self._draft.restart()
        self._hasher, self._writer = hashlib.sha256(), self._vault.writer(self._draft.write)

    def end(self) -> None:
        self._writer.end()

    def digest(self) -> str:
        return self._hasher.hexdigest()
