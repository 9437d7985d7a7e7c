"""Who is told what a build does as it goes: by default the terminal, and in a sweep the process that runs the jobs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol

from forge_pipeline import scratch
from forge_pipeline.pipeline.console import progress_for, warn
from forge_pipeline.store.locks import locked


class Listener(Protocol):
    """Whoever started a build."""

    def begins(self, stage: str) -> None:
        """Hear that a stage has to run, and does so now."""

    def ends(self, stage: str) -> None:
        """Hear that a stage's output is there, built or found."""

    def progress(self, description: str) -> Callable[[int, int], None]:
        """Return what is told ``(done, total)``."""

    def quiet(self) -> AbstractContextManager[None]:
        """Keep this machine to oneself, as far as that can be had, while something is timed."""


class Terminal:
    """One build by itself: it says what is done, and how far it is with what takes long."""

    def begins(self, stage: str) -> None:
        """Say nothing: the line comes when it is done."""

    def ends(self, stage: str) -> None:
        """Say nothing more than the line that the build prints."""

    def progress(self, description: str) -> Callable[[int, int], None]:
        """Return a bar, or what prints a line now and then."""
        return progress_for(description)

    def quiet(self) -> AbstractContextManager[None]:
        """Wait until nobody else times anything here."""
        return timing()


LISTENER: ContextVar[Listener] = ContextVar("LISTENER", default=Terminal())  # noqa: B039  it holds nothing


@contextmanager
def timing() -> Iterator[None]:
    """Be the only one of this user's processes on this machine that times anything, whatever started them."""
    with locked(
        scratch.usual() / f"forge-timing-{os.getuid()}",
        on_wait=lambda: warn("another build is being timed on this machine; waiting for it to end"),
    ):
        yield
