"""A second store behind any fsspec URL: read through, written behind, never trusted, never a reason to fail or to wait.

It holds the same names as the local folder, so a shared folder, an object store and a web server all serve. Whoever
can write to it can answer for any action key: give write access to those whose builds you would run.

A process of its own talks to it (`carrier`), one for reading and one for writing. Whatever hangs there is ended from
here: when it takes too long, when the build is interrupted, when this process ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Pipe
from pathlib import Path
from threading import Condition, Lock, Thread
from typing import Any

from forge_pipeline import children
from forge_pipeline.digest import CHUNK
from forge_pipeline.errors import StoreError, did_you_mean
from forge_pipeline.store import carrier
from forge_pipeline.store.disk import ACTIONS, MAX_RECORD, OBJECTS, fan_out
from forge_runtime.redact import redacted, secrets_of

WHERE = "store.remote"
READ_UNSEEN = 8 << 20  # bytes that may be on their way before anything is heard of them: two blocks,
SENT_UNSEEN = 128 << 20  # and what a back end sends in one request, without a word about how far it is
START = 60.0  # seconds for the process to start, which has to do with this machine alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """A remote, and what it may cost.

    ``answer`` is how many seconds it may be silent, ``rate`` how many bytes it moves in a second at least, and
    ``patience`` how many seconds of waiting, beyond what that rate explains, it is worth altogether.
    """

    url: str = field(repr=False)
    writable: bool = True
    answer: float = 10.0
    rate: float = 1e6
    patience: float = 60.0


class FailedError(Exception):
    """The remote did not do what it was asked for; the message says why."""


class Remote:
    """One remote, for all stores of a process. Its first failure is told once, and ends reading or writing it."""

    def __init__(self, terms: Terms, notify: Callable[[str], None]) -> None:
        """Raises StoreError when the URL names no known protocol, or one whose package is not installed."""
        self._terms, self._notify = terms, notify
        self._secrets, self._shown = secrets_of(terms.url), redacted(terms.url)
        budget = _Budget(terms.patience)
        self._reading, self._writing = _Channel(terms, budget), _Channel(terms, budget)
        self._writing.off = not terms.writable
        self._distrusted: set[str] = set()
        self._jobs: deque[Callable[[], None]] = deque()
        self._worker: Thread | None = None
        self._worked = Condition()  # about these two
        try:
            wrong = self._reading.start()
        except FailedError as error:
            self._give_up(self._reading, str(error))
            return
        if wrong is not None:
            self.close()
            raise _refusal(wrong)

    def close(self) -> None:
        """End both processes, and what they are doing."""
        for channel in (self._reading, self._writing):
            channel.off = True
            channel.end()

    def fetch(self, area: str, digest: str, sink: Callable[[bytes], object], limit: int) -> bool:
        """Pass the file, of at most ``limit`` bytes, to ``sink`` in pieces.

        False when the remote has no such file, none that is sound, or fails. What ``sink`` raises goes through.
        """
        name = f"{area}/{fan_out(digest)}"
        request = {"do": "read", "name": name, "limit": limit}
        unseen = min(limit, READ_UNSEEN) if area == OBJECTS else 0
        end = self._ask(self._reading, request, unseen, take=sink)
        if end == "odd":
            self.distrust(area, digest)
        return end == "done"

    def record(self, key: str) -> bytes | None:
        """Return the bytes of an action's record, as they are; None when the remote has none, or fails."""
        pieces: list[bytes] = []
        return b"".join(pieces) if self.fetch(ACTIONS, key, pieces.append, MAX_RECORD) else None

    def distrust(self, area: str, digest: str) -> None:
        """Say that the remote's file is damaged, so that the next upload replaces it."""
        self._distrusted.add(digest)
        self._tell(f"{area}/{fan_out(digest)}: damaged in the remote store {self._shown}; it is not used")

    def upload(self, key: str, record: bytes, objects: Mapping[str, Path]) -> None:
        """Send an action's objects, then its record, behind the caller's back. ``objects``: file by digest."""
        if self._writing.off:
            return
        with self._worked:
            self._jobs.append(lambda: self._upload(key, record, objects))
            if self._worker is None:
                self._worker = Thread(target=self._work, name="forge-store-upload", daemon=True)
                self._worker.start()

    def flush(self, *, cancel: bool = False) -> None:
        """Wait for the uploads; with ``cancel``, or when that is interrupted, drop them and send no more."""
        try:
            with self._worked:
                self._worked.wait_for(lambda: cancel or self._worker is None)
        except BaseException:
            cancel = True
            raise
        finally:
            if cancel:
                self._writing.off = True
                self._writing.end()

    def _work(self) -> None:
        while True:
            with self._worked:
                if not self._jobs:
                    self._worker = None
                    self._worked.notify_all()
                    return
                job = self._jobs.popleft()
            try:
                job()
            except BaseException:  # of `notify`: nobody may wait for this thread any more
                with self._worked:
                    self._jobs.clear()
                    self._worker = None
                    self._worked.notify_all()
                raise

    def _upload(self, key: str, record: bytes, objects: Mapping[str, Path]) -> None:
        for digest, path in objects.items():
            try:
                size = path.stat().st_size
            except OSError:  # damaged and moved away since: its action is built again
                return
            name = f"{OBJECTS}/{fan_out(digest)}"
            replace = digest in self._distrusted
            request = {"do": "send", "name": name, "source": str(path), "size": size, "replace": replace}
            if self._ask(self._writing, request, min(size, SENT_UNSEEN)) != "done":
                return
            self._distrusted.discard(digest)
        request = {"do": "write", "name": f"{ACTIONS}/{fan_out(key)}"}
        if self._ask(self._writing, request, len(record), data=record) == "done":
            self._distrusted.discard(key)

    def _ask(
        self,
        way: _Channel,
        request: Mapping[str, Any],
        unseen: int,
        *,
        data: bytes | None = None,
        take: Callable[[bytes], object] = lambda piece: None,
    ) -> str | None:
        """Return how it ended; None where this way is not used, any more."""
        with way.lock:
            if way.off:
                return None
            try:
                return way.ask(request, unseen, data, take)
            except FailedError as error:
                if not way.off:  # else ended from outside, by a cancellation
                    self._give_up(way, str(error))
                return None
            except BaseException:  # of `take`, or an interrupt: the rest of the answer is for nobody
                way.end()
                raise

    def _give_up(self, way: _Channel, found: str) -> None:
        way.off = True
        way.end()
        what = ("reading", "read from it") if way is self._reading else ("writing", "sent to it")
        self._tell(f"remote store {self._shown}: {what[0]} failed ({found}); nothing more is {what[1]}")

    def _tell(self, message: str) -> None:
        self._notify(redacted(message, self._secrets))


class _Budget:
    """The seconds of waiting that are left, for both ways together."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds
        self._lock = Lock()

    def spend(self, seconds: float) -> None:
        with self._lock:
            self.left -= max(0.0, seconds)


class _Channel:
    """Reading or writing: its process, started when it is needed, and whether it is still used."""

    def __init__(self, terms: Terms, budget: _Budget) -> None:
        self.off, self.lock = False, Lock()
        self._terms, self._budget = terms, budget
        self._child: _Child | None = None

    def start(self) -> dict[str, Any] | None:
        """Start the process; return what is wrong with the URL. Raises FailedError."""
        if self._child is None:
            try:
                self._child = _Child()
            except OSError as error:
                raise FailedError(f"no process to talk to it: {error.strerror}") from error
        self._child.send(os.fsencode(self._terms.url))
        message = self._child.receive(time.monotonic() + START, "the process that talks to it does not start")
        wrong: dict[str, Any] | None = json.loads(message[1:])["wrong"]
        return wrong

    def ask(self, request: Mapping[str, Any], unseen: int, data: bytes | None, take: Callable[[bytes], object]) -> str:
        """Return how it ended; ``unseen`` bytes may move before anything is heard of them. Raises FailedError."""
        if self._child is None:
            self.start()
        messages = [json.dumps(request).encode(), *([] if data is None else [data])]
        answer = self._exchange(messages, unseen, take)
        if answer["end"] == "failed":
            raise FailedError(answer["found"])
        return str(answer["end"])

    def end(self) -> None:
        """End the process, if there is one; safe from another thread than the one that asks."""
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def _exchange(self, messages: list[bytes], unseen: int, take: Callable[[bytes], object]) -> dict[str, Any]:
        child, terms = self._child, self._terms
        if child is None:
            raise FailedError("ended")
        begun = heard = time.monotonic()
        moved = 0
        try:
            for message in messages:
                child.send(message)
            while True:
                quiet, slowest = terms.answer + unseen / terms.rate, (moved + unseen) / terms.rate
                due = {
                    f"silent for {quiet:.3g} s": heard + quiet,
                    f"slower than {terms.rate:.3g} bytes a second": begun + terms.answer + slowest,
                    f"{terms.patience:.3g} s of waiting are used up, see store.remote_patience": begun
                    + max(0.0, self._budget.left)
                    + slowest,
                }
                reason = min(due, key=due.__getitem__)
                message = child.receive(due[reason], reason)
                heard = time.monotonic()
                if message[:1] == b"=":
                    moved = max(moved, unseen)
                    answer: dict[str, Any] = json.loads(message[1:])
                    return answer
                if message[:1] == b"d":
                    take(message[1:])
                    moved += len(message) - 1
                    taken = time.monotonic() - heard
                    begun, heard = begun + taken, heard + taken  # what we do with it is not the remote's time
                else:
                    moved += int(message[1:])
        finally:
            self._budget.spend(time.monotonic() - begun - moved / terms.rate)


class _Child:
    """A running carrier. Raises OSError where it cannot be started."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            command = children.python(carrier.__file__, str(theirs.fileno()))
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=children.environment_with_credentials(),
                start_new_session=True,  # Ctrl-C is for us
            )  # fmt: skip
        self.end = weakref.finalize(self, _end, self._process)

    def send(self, message: bytes) -> None:
        """Hand a message over. Raises FailedError."""
        try:
            self._connection.send_bytes(message)
        except OSError as error:
            raise FailedError("the process that talks to it ended") from error

    def receive(self, due: float, reason: str) -> bytes:
        """Return the next message. Raises FailedError, with ``reason`` when there is none before ``due``."""
        try:
            if not self._connection.poll(max(0.0, due - time.monotonic())):
                raise FailedError(reason)
            return self._connection.recv_bytes(CHUNK + 1)
        except (EOFError, OSError) as error:
            raise FailedError("the process that talks to it ended") from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a carrier: at once where it can unwind, else by force; one that the kernel holds is left to the kernel."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.5)


def _refusal(wrong: Mapping[str, Any]) -> StoreError:
    if "missing" in wrong:
        return StoreError(
            where=WHERE,
            expected=f"what {wrong['protocol']!r} needs to be installed",
            found=wrong["missing"],
            fix="install it",
        )
    return StoreError(
        where=WHERE,
        expected="an fsspec URL, such as s3://bucket/folder or file:///folder",
        found=f"protocol {wrong['protocol']!r}",
        fix=f"{did_you_mean(wrong['protocol'], wrong['known'])}correct the URL, or set store.remote=null",
    )
