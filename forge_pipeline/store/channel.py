"""One way to a remote, to read it or to write to it: the processes that do that, and what they may take.

Whatever hangs there is ended from here: when it takes too long, when the build is interrupted, when this process ends.
"""

from __future__ import annotations

import json
import subprocess
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Pipe
from queue import LifoQueue
from threading import Event, Lock
from typing import Any, Protocol

from forge_pipeline import children
from forge_pipeline.digest import CHUNK

START = 60.0  # seconds for a process to start, which has to do with this machine alone
PAUSE = 0.2  # seconds before another attempt, and four times as many before the one after it


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """A remote, and what it may cost.

    ``options`` is a JSON object, handed to fsspec. ``answer`` is how many seconds it may be silent, ``rate`` how many
    bytes it moves in a second at least, and ``patience`` how many seconds of waiting, beyond what that rate explains,
    it is worth altogether. What fails and may pass is tried ``tries`` times. ``wait`` is how many seconds a build waits
    for another machine that is at the same. With ``required``, what fails is an error, not a line.
    """

    url: str = field(repr=False)
    options: str = field(repr=False, default="{}")
    writable: bool = True
    required: bool = False
    answer: float = 10.0
    rate: float = 1e6
    patience: float = 60.0
    tries: int = 3
    wait: float = 600.0


class FailedError(Exception):
    """The remote did not do what it was asked for; the message says why."""

    def __init__(self, found: str, *, again: bool = False) -> None:
        super().__init__(found)
        self.again = again
        """Whether another attempt may do better."""


class Sink(Protocol):
    """Takes the pieces of a file, and begins anew where another attempt does."""

    def write(self, piece: bytes) -> None:
        """Take a piece."""

    def restart(self) -> None:
        """Forget what was taken."""


class Budget:
    """The seconds of waiting that are left, for both ways together."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds
        self._lock = Lock()

    def spend(self, seconds: float) -> None:
        """Take from what is left."""
        with self._lock:
            self.left -= max(0.0, seconds)


class Way:
    """Reading or writing: ``width`` processes at most, started when they are needed, and whether it is still used."""

    def __init__(self, name: str, terms: Terms, budget: Budget, width: int) -> None:
        self.name = name
        self.off = Event()
        self._channels = [_Channel(terms, budget) for _ in range(width)]
        self._free: LifoQueue[_Channel] = LifoQueue()
        for channel in self._channels:
            self._free.put(channel)
        self._tries = terms.tries

    def start(self) -> dict[str, Any] | None:
        """Start a process; return what is wrong with the URL. Raises FailedError."""
        with self._channel() as channel:
            return channel.start()

    def ask(
        self, request: Mapping[str, Any], *, unseen: int = 0, data: bytes | None = None, sink: Sink | None = None
    ) -> str | None:
        """Return how it ended; None where this way is not used, any more.

        ``unseen`` bytes may move before anything is heard of them. Raises FailedError, and what ``sink`` raises.
        """
        with self._channel() as channel:
            for attempt in range(self._tries):
                if self.off.is_set():
                    return None
                try:
                    return channel.ask(request, unseen, data, sink)
                except FailedError as error:
                    if self.off.is_set():  # ended from outside, by a cancellation
                        return None
                    if not error.again or attempt + 1 == self._tries:
                        raise
                except BaseException:  # of the sink, or an interrupt: the rest of the answer is for nobody
                    channel.end()
                    raise
                self.off.wait(PAUSE * 4**attempt)
                if sink is not None:
                    sink.restart()
            return None

    def end(self) -> None:
        """Use this way no more, and end what is under way; safe from any thread."""
        self.off.set()
        for channel in self._channels:
            channel.end()

    @contextmanager
    def _channel(self) -> Iterator[_Channel]:
        channel = self._free.get()
        try:
            yield channel
        finally:
            self._free.put(channel)


class _Channel:
    """One process at a time, and what it is asked."""

    def __init__(self, terms: Terms, budget: Budget) -> None:
        self._terms, self._budget = terms, budget
        self._child: _Child | None = None

    def start(self) -> dict[str, Any] | None:
        """Start the process; return what is wrong with the URL. Raises FailedError."""
        if self._child is None:
            try:
                self._child = _Child()
            except OSError as error:
                raise FailedError(f"no process to talk to it: {error.strerror}") from error
        place = {"url": self._terms.url, "options": json.loads(self._terms.options)}
        self._child.send(json.dumps(place).encode())
        message = self._child.receive(time.monotonic() + START, "the process that talks to it does not start")
        wrong: dict[str, Any] | None = json.loads(message[1:])["wrong"]
        return wrong

    def ask(self, request: Mapping[str, Any], unseen: int, data: bytes | None, sink: Sink | None) -> str:
        """Return how it ended. Raises FailedError."""
        if self._child is None:
            self.start()
        messages = [json.dumps({**request, "data": data is not None}).encode(), *([] if data is None else [data])]
        try:
            answer = self._exchange(messages, unseen, sink)
        except FailedError:
            self.end()  # it may be at it still
            raise
        if answer["end"] == "failed":
            raise FailedError(answer["found"], again=answer["again"])
        return str(answer["end"])

    def end(self) -> None:
        """End the process, if there is one; safe from another thread than the one that asks."""
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def _exchange(self, messages: list[bytes], unseen: int, sink: Sink | None) -> dict[str, Any]:
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
                    if sink is not None:
                        sink.write(message[1:])
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
            command = children.python("-m", "forge_pipeline.carrier", str(theirs.fileno()))
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
