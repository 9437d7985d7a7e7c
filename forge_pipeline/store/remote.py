"""A second store behind any fsspec URL: read through, written behind, never trusted; a reason to fail if that is asked.

It holds the same names as the local folder, so a shared folder, an object store and a web server all serve. Whoever
can write to it can answer for any action key: give write access to those whose builds you would run.

Processes of their own talk to it (`forge_pipeline.carrier`), some for reading and some for writing (`channel`).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Condition, Thread
from typing import Any

from forge_pipeline.errors import StoreError, did_you_mean
from forge_pipeline.store.channel import Budget, FailedError, Sink, Terms, Way
from forge_pipeline.store.disk import ACTIONS, MAX_RECORD, OBJECTS, fan_out
from forge_pipeline.store.leases import Leases
from forge_runtime.redact import SHORTEST, redacted, secrets_of

WHERE = "store.remote"
READ_UNSEEN = 8 << 20  # bytes that may be on their way before anything is heard of them: what is asked for at once,
SENT_UNSEEN = 128 << 20  # and what a back end sends in one request, without a word about how far it is

Shown = Callable[[], AbstractContextManager[Path | None]]
"""Shows an object as a file, which may not be there, for as long as it is open; None where that cannot be had."""
Done = Callable[[bool], object]
"""Told of an upload whether it was sent: false where the remote had it."""


class Remote:
    """One remote, for all stores of a process. What fails for good is told once, and ends reading or writing it.

    Where it is required, that is a StoreError: at once of what reads, and of the next call after an upload.
    """

    def __init__(self, terms: Terms, notify: Callable[[str], None], *, width: int = 1) -> None:
        """Raises StoreError when the URL names no known protocol, or one whose package is not installed.

        ``width`` is how many processes read it at most, and as many write to it.
        """
        self._terms, self._notify = terms, notify
        self._secrets = tuple(sorted({*secrets_of(terms.url), *_texts(json.loads(terms.options))}, key=len)[::-1])
        self._shown = redacted(terms.url)
        budget = Budget(terms.patience)
        self._reading, self._writing = (Way(name, terms, budget, width) for name in ("reading", "writing"))
        if not terms.writable:
            self._writing.off.set()
        self._refusal: StoreError | None = None
        self._leases = Leases(self._quietly, self._read_quietly)
        self._distrusted: set[str] = set()
        self._width = width
        self._jobs: deque[Callable[[], object]] = deque()
        self._workers = 0
        self._worked = Condition()  # about these two
        try:
            wrong = self._reading.start()
        except FailedError as error:
            self._give_up(self._reading, str(error))
            self._refuse()
            return
        if wrong is not None:
            self.close()
            raise _unusable(wrong)
        if terms.required:
            self._ask(self._reading, {"do": "look"})
            self._refuse()

    @property
    def shown(self) -> str:
        """The URL without its secrets."""
        return self._shown

    def close(self) -> None:
        """End its processes, and what they are doing."""
        for way in (self._reading, self._writing):
            way.end()

    def fetch(self, area: str, digest: str, sink: Sink, limit: int) -> bool:
        """Pass the file, of at most ``limit`` bytes, to ``sink`` in pieces.

        False when the remote has no such file, none that is sound, or fails. What ``sink`` raises goes through.
        """
        self._refuse()
        if digest in self._distrusted:
            return False
        request = {"do": "read", "name": f"{area}/{fan_out(digest)}", "limit": limit}
        end = self._ask(self._reading, request, unseen=min(limit, READ_UNSEEN) if area == OBJECTS else 0, sink=sink)
        if end == "odd":
            self.distrust(area, digest)
        return end == "done"

    def record(self, key: str) -> bytes | None:
        """Return the bytes of an action's record, as they are; None when the remote has none, or fails."""
        pieces = _Pieces()
        return pieces.joined() if self.fetch(ACTIONS, key, pieces, MAX_RECORD) else None

    def distrust(self, area: str, digest: str) -> None:
        """Say that the remote's file is damaged, so that the next upload replaces it."""
        if digest in self._distrusted:
            return
        self._distrusted.add(digest)
        self._tell(f"{area}/{fan_out(digest)}: damaged in the remote store {self._shown}; it is not used")

    def upload(
        self,
        key: str,
        record: bytes,
        objects: Mapping[str, Shown],
        *,
        missing: bool = False,
        done: Done = lambda sent: None,
    ) -> None:
        """Send an action's objects, then its record, behind the caller's back. ``objects``, by digest, are files.

        With ``missing``, only where the remote has no such record. ``done`` is told how it ended, unless it failed.
        """
        self._refuse()
        self._behind(lambda: self._upload(key, record, objects, missing, done))

    def names(self, area: str) -> Iterator[tuple[str, int, float]]:
        """Yield what the remote has below ``area``: name, bytes, and when it was written (seconds; 0: unknown).

        Raises StoreError where it cannot be listed.
        """
        pieces = _Pieces()
        end = self._ask(self._reading, {"do": "list", "name": area}, sink=pieces)
        self._refuse()
        if end != "done":
            raise StoreError(WHERE, "a remote that can be listed", self._shown, "do this where its files are")
        for line in pieces.joined().splitlines():
            yield from ((str(name), int(size), float(written)) for name, size, written in json.loads(line))

    def remove(self, names: Iterable[str], done: Callable[[], object] = lambda: None) -> None:
        """Remove files, behind the caller's back; `flush` waits for that."""

        def removed(name: str) -> None:
            if self._ask(self._writing, {"do": "remove", "name": name}) == "done":
                done()

        for name in names:
            self._behind(lambda name=name: removed(name))  # type: ignore[misc]

    def turn(self, key: str, *, ready: Callable[[], bool], on_wait: Callable[[], None]) -> None:
        """Wait until no other machine builds ``key``, or ``ready``; `pass_turn` lets the next one go on."""
        if not self._writing.off.is_set():
            self._leases.acquire(key, limit=self._terms.wait, ready=ready, on_wait=on_wait)

    def pass_turn(self, key: str) -> None:
        """Let others build ``key``, when what is sent of it is there."""
        self._behind(lambda: self._leases.release(key))

    def flush(self, *, cancel: bool = False) -> None:
        """Wait for the uploads; with ``cancel``, or when that is interrupted, drop them and send no more."""
        try:
            with self._worked:
                self._worked.wait_for(lambda: cancel or not self._workers)
        except BaseException:
            cancel = True
            raise
        finally:
            if cancel:
                self._writing.end()
        self._refuse()

    def _behind(self, job: Callable[[], object]) -> None:
        if self._writing.off.is_set():
            return
        with self._worked:
            self._jobs.append(job)
            if self._workers < self._width:
                self._workers += 1
                Thread(target=self._work, name="forge-store-upload", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._worked:
                if not self._jobs:
                    self._workers -= 1
                    self._worked.notify_all()
                    return
                job = self._jobs.popleft()
            try:
                job()
            except BaseException:  # of `notify`: nobody may wait for what is left any more
                with self._worked:
                    self._jobs.clear()
                    self._workers -= 1
                    self._worked.notify_all()
                raise

    def _upload(self, key: str, record: bytes, objects: Mapping[str, Shown], missing: bool, done: Done) -> None:
        name = f"{ACTIONS}/{fan_out(key)}"
        if missing and key not in self._distrusted:
            end = self._ask(self._writing, {"do": "has", "name": name})
            if end == "done":
                done(False)
            if end != "no":
                return
        for digest, shown in objects.items():
            with shown() as path:
                if path is None or not self._send(digest, path):
                    return
        if self._ask(self._writing, {"do": "write", "name": name}, unseen=len(record), data=record) == "done":
            self._distrusted.discard(key)
            done(True)

    def _send(self, digest: str, path: Path) -> bool:
        try:
            size = path.stat().st_size
        except OSError:  # damaged and moved away since: its action is built again
            return False
        replace = digest in self._distrusted
        name = f"{OBJECTS}/{fan_out(digest)}"
        request = {"do": "send", "name": name, "source": str(path), "size": size, "replace": replace}
        if self._ask(self._writing, request, unseen=min(size, SENT_UNSEEN)) != "done":
            return False
        self._distrusted.discard(digest)
        return True

    def _ask(self, way: Way, request: Mapping[str, Any], **more: Any) -> str | None:
        """Return how it ended; None where this way is not used, any more."""
        try:
            return way.ask(request, **more)
        except FailedError as error:
            self._give_up(way, str(error))
            if way is self._reading:
                self._refuse()
            return None

    def _quietly(self, request: Mapping[str, Any], data: bytes | None = None) -> str | None:
        """Ask for what nothing depends on."""
        try:
            return self._reading.ask(request, data=data)
        except FailedError:
            return None

    def _read_quietly(self, name: str, limit: int) -> bytes | None:
        pieces = _Pieces()
        try:
            end = self._reading.ask({"do": "read", "name": name, "limit": limit}, sink=pieces)
        except FailedError:
            return None
        return pieces.joined() if end == "done" else None

    def _give_up(self, way: Way, found: str) -> None:
        way.end()
        if self._terms.required:
            self._refusal = StoreError(
                where=f"{WHERE} {self._shown}",
                expected="a remote store that works, since it is required",
                found=redacted(f"that {way.name} failed ({found})", self._secrets),
                fix="correct the URL, store.remote_options or the credentials, or set store.remote_required=false",
            )
            return
        what = "read from it" if way is self._reading else "sent to it"
        self._tell(f"remote store {self._shown}: {way.name} failed ({found}); nothing more is {what}")

    def _refuse(self) -> None:
        """Raise what went wrong with a remote that is required."""
        if self._refusal is not None:
            raise self._refusal

    def _tell(self, message: str) -> None:
        self._notify(redacted(message, self._secrets))


class _Pieces:
    """What was read, in memory."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def restart(self) -> None:
        self._pieces.clear()

    def joined(self) -> bytes:
        return b"".join(self._pieces)


def _texts(options: object) -> Iterator[str]:
    """Yield every text among the options: which of them are keys, only the back end knows."""
    if isinstance(options, Mapping):
        options = list(options.values())
    if isinstance(options, list):
        for option in options:
            yield from _texts(option)
    elif isinstance(options, str) and len(options) >= SHORTEST:
        yield options


def _unusable(wrong: Mapping[str, Any]) -> StoreError:
    if "missing" in wrong:
        extra = wrong["extra"]
        return StoreError(
            where=WHERE,
            expected=f"what {wrong['protocol']!r} needs to be installed",
            found=wrong["missing"],
            fix=f"pip install 'forge-pipeline[{extra}]'" if extra else "install it",
        )
    return StoreError(
        where=WHERE,
        expected="an fsspec URL, such as s3://bucket/folder or file:///folder",
        found=f"protocol {wrong['protocol']!r}",
        fix=f"{did_you_mean(wrong['protocol'], wrong['known'])}correct the URL, or set store.remote=null",
    )
