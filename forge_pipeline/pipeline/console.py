"""What a build prints: one line a stage on stdout; warnings and errors on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from forge_pipeline.report.figures import size
from forge_runtime.text import shown

if TYPE_CHECKING:
    from forge_pipeline.pipeline.runner import Output


def stage_line(output: Output, label: str) -> str:
    """Return `compile  built  2.31 s  1.2 MB  3f9a0c...  raspberry-pi/5` for one finished stage."""
    digests = output.digest()
    name, digest = next(iter(digests.items()))
    outside = sum(output.action.sizes.get(file, 0) for file in output.kind.outside)
    length = size(output.action.sizes[name] + outside)
    result = "hit" if output.hit else "built"
    line = f"{output.stage.name:<10}{result:<6}{output.seconds:>8.2f} s  {length:>9}  {digest[:16]}  {label}"
    return shown(line.rstrip())


def notes(output: Output) -> list[str]:
    """Return what a stage has to say beside its output, a line each."""
    return [f"{output.stage.name:<10}{shown(str(note))}" for note in output.report().get("notes", ())]


def warn(message: str) -> None:
    """Print a warning on stderr."""
    print(f"warning: {shown(message)}", file=sys.stderr, flush=True)


def progress_for(description: str) -> Callable[[int, int], None]:
    """Return a callback ``(done, total)``: a bar on a terminal, a line every tenth of the way elsewhere."""
    if sys.stderr.isatty():
        return _bar(description)
    return _lines(description)


def _bar(description: str) -> Callable[[int, int], None]:
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(description, total=None)

    def advance(done: int, total: int) -> None:
        if not bar.live.is_started:
            bar.start()
        bar.update(task, completed=done, total=total)
        if done >= total:
            bar.stop()

    return advance


def _lines(description: str) -> Callable[[int, int], None]:
    printed = 0

    def advance(done: int, total: int) -> None:
        nonlocal printed
        tenth = 10 * done // max(total, 1)
        if tenth > printed:
            printed = tenth
            print(f"{description}: {done}/{total}", file=sys.stderr, flush=True)

    return advance
