"""What is shown of jobs that run at once: a table that changes on a terminal, lines in a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from forge_runtime.text import shown

if TYPE_CHECKING:
    from rich.table import Table


class Display(Protocol):
    """Is told what happens to jobs, by their numbers."""

    def starts(self, job: int) -> None:
        """Take note that a job is begun."""

    def begins(self, job: int, stage: str) -> None:
        """Take note that a stage of it has to run."""

    def ends(self, job: int, stage: str) -> None:
        """Take note that a stage's output is there."""

    def progress(self, job: int, description: str, done: int, total: int) -> None:
        """Take note of how far it is with what takes long."""

    def finished(self, job: int, failed: bool) -> None:
        """Take note that a job has come to its end."""

    def line(self, text: str, *, is_error: bool) -> None:
        """Show what a job prints."""

    def refresh(self) -> None:
        """Show what is so now."""


class Lines:
    """For a file, and for a continuous integration's log: a line where a stage starts; the jobs say when it ends."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._begun = names, time.monotonic()

    def starts(self, job: int) -> None:
        """Say nothing: its first stage follows at once."""

    def begins(self, job: int, stage: str) -> None:
        """Print the time since the sweep began, too."""
        seconds = time.monotonic() - self._begun
        self.line(f"{stage:<10}{'start':<6}{seconds:>8.2f} s  {self._names[job]}", is_error=False)

    def ends(self, job: int, stage: str) -> None:
        """Say nothing: the job has a line for it."""

    def progress(self, job: int, description: str, done: int, total: int) -> None:
        """Say nothing: the next stage's line comes soon enough."""

    def finished(self, job: int, failed: bool) -> None:
        """Say nothing: a job says what it delivered, and why it failed."""

    def line(self, text: str, *, is_error: bool) -> None:
        """Print it where the job would have."""
        print(text, file=sys.stderr if is_error else sys.stdout, flush=True)

    def refresh(self) -> None:
        """Say nothing."""


@dataclass(slots=True)
class _Row:
    state: str = "waits"
    now: str = ""
    since: float | None = None
    took: float | None = None


class Live:
    """For a terminal: a row a job, with the stage, what runs now, and since when. Use it in a ``with`` block."""

    def __init__(self, names: Sequence[str]) -> None:
        from rich.console import Console
        from rich.live import Live as Screen

        self._names, self._rows = [shown(name) for name in names], [_Row() for _ in names]
        self._console = Console(stderr=True, highlight=False, markup=False)
        # It is refreshed from here: a thread of its own would not live through a fork.
        self._screen = Screen(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._drawn = 0.0

    def __enter__(self) -> Live:
        self._screen.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._draw()
        self._screen.stop()

    def starts(self, job: int) -> None:
        """Show that it looks for what is there."""
        self._rows[job] = _Row("starts", since=time.monotonic())

    def begins(self, job: int, stage: str) -> None:
        """Show the stage."""
        self._rows[job].state, self._rows[job].now = stage, ""
        self._rows[job].since = time.monotonic()

    def ends(self, job: int, stage: str) -> None:
        """Show the stage that is done."""
        self._rows[job].state, self._rows[job].now = stage, "done"
        self._rows[job].since = time.monotonic()

    def progress(self, job: int, description: str, done: int, total: int) -> None:
        """Show it beside the stage."""
        self._rows[job].now = f"{shown(description)}: {done}/{total}"

    def finished(self, job: int, failed: bool) -> None:
        """Show how it ended."""
        self._rows[job] = _Row("failed" if failed else "delivered")

    def line(self, text: str, *, is_error: bool) -> None:
        """Print it above the table."""
        self._console.print(text, style="red" if is_error else None, soft_wrap=True)

    def refresh(self) -> None:
        """Draw the table, a few times a second at most."""
        if time.monotonic() - self._drawn > 0.1:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        self._screen.update(self._table(), refresh=True)

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for title in ("job", "stage", "now", "since"):
            table.add_column(title, no_wrap=True, justify="right" if title == "since" else "left")
        for name, row in zip(self._names, self._rows, strict=True):
            since = "" if row.since is None else f"{self._drawn - row.since:.0f} s"
            table.add_row(name, row.state, row.now, since)
        return table


def display_for(names: Sequence[str]) -> AbstractContextManager[Display]:
    """Return the table where somebody looks, else lines."""
    if sys.stdout.isatty() and sys.stderr.isatty():
        return Live(names)
    return nullcontext(Lines(names))
