"""A child process that does jobs, one after another, for the process that forked it, and tells it how far it is."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from forge_pipeline.limits import end_with_parent
from forge_pipeline.pipeline.listener import LISTENER, timing

STEP = 0.2  # seconds between two words about how far something is


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Something to do: ``name`` is for people; what jobs of one ``group`` do first, they do alike.

    Those of the most ``effort``, a rank, are begun first: one that takes long and is begun last is waited for alone.
    """

    name: str
    group: Hashable
    call: Callable[[], Any]
    effort: int = 0


@dataclass(frozen=True, slots=True)
class Begins:
    """A stage has to run."""

    stage: str


@dataclass(frozen=True, slots=True)
class Ends:
    """A stage's output is there."""

    stage: str


@dataclass(frozen=True, slots=True)
class Progress:
    """So much of it is done."""

    description: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Quiet:
    """Something is to be timed (it waits for an answer), or has been."""

    wanted: bool


@dataclass(frozen=True, slots=True)
class Done:
    """A job has come to its end: what it gave, or raised."""

    result: Any


class Link:
    """Tells the parent process. See `Listener`."""

    def __init__(self, parent: Connection) -> None:
        self._parent = parent

    def begins(self, stage: str) -> None:
        """Say so."""
        self._parent.send(Begins(stage))

    def ends(self, stage: str) -> None:
        """Say so."""
        self._parent.send(Ends(stage))

    def progress(self, description: str) -> Callable[[int, int], None]:
        """Return what says so a few times a second."""
        last = 0.0

        def advance(done: int, total: int) -> None:
            nonlocal last
            if done >= total or time.monotonic() - last > STEP:
                last = time.monotonic()
                self._parent.send(Progress(description, done, total))

        return advance

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Have the parent hold the other workers still, and wait until no other sweep times anything."""
        self._parent.send(Quiet(True))
        self._parent.recv()
        try:
            with timing():
                yield
        finally:
            self._parent.send(Quiet(False))


def work(jobs: Sequence[Job], parent: Connection, streams: Sequence[int]) -> None:
    """Do the jobs whose numbers come from ``parent``, until it ends; never returns.

    The process must have been forked a moment ago. ``streams`` take what is printed. It ends with its parent, however
    that ends, and at SIGTERM; a terminal's Ctrl-C does not reach it.
    """
    code = 0
    try:
        end_with_parent()
        os.setsid()
        for number, stream in enumerate(streams, start=1):
            os.dup2(stream, number)
        LISTENER.set(Link(parent))
        while True:
            done = pickle.dumps(Done(_result(jobs[parent.recv()])))
            sys.stdout.flush()
            sys.stderr.flush()
            parent.send_bytes(done)
    except EOFError:
        pass
    except BaseException:  # noqa: BLE001  a signal, which has unwound all that was under way
        code = 128 + signal.SIGTERM
    finally:
        os._exit(code)


def _result(job: Job) -> Any:
    """Do a job; return what it gives or raises, as it can be sent."""
    try:
        result = job.call()
    except Exception as error:  # noqa: BLE001  the parent's to tell
        result = error
    try:
        pickle.dumps(result)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        return RuntimeError(f"{job.name}: a result that cannot be sent: {error}")
    return result
