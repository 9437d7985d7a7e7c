"""Jobs in a pool, in a process of their own: ``python -m tests.support.pool_jobs SCENARIO FOLDER``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from forge_pipeline.errors import ForgeError
from forge_pipeline.exits import guarded
from forge_pipeline.pipeline.listener import LISTENER
from forge_pipeline.pipeline.parallel.display import Lines
from forge_pipeline.pipeline.parallel.pool import Pool
from forge_pipeline.pipeline.parallel.worker import Job

FOLDER = Path(sys.argv[2]) if len(sys.argv) == 3 else Path()
COUNTS = "import sys, time\nwhile True:\n    open(sys.argv[1], 'a').write('.'); time.sleep(0.005)"
"""A program that counts in a file for as long as it runs."""


def fine(number: int) -> int:
    print(f"out {number}")
    print(f"err {number}", file=sys.stderr)
    time.sleep(0.1)
    return os.getpid()


def refused() -> None:
    raise ForgeError("job", "this", "that", "nothing")


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def unsendable() -> Any:
    return lambda: None


def counting(seconds: float) -> None:
    """Count in a child process."""
    child = None
    try:
        child = subprocess.Popen([sys.executable, "-c", COUNTS, str(FOLDER / "count")], start_new_session=True)
        time.sleep(seconds)
    finally:
        if child is not None:
            child.kill()
            child.wait()
        (FOLDER / "tidy").touch()


def timed() -> list[int]:
    """Look at the count of another job before, at the beginning and at the end of a quiet time, and after it."""
    counted = FOLDER / "count"
    while not counted.exists():
        time.sleep(0.01)
    seen = [counted.stat().st_size]
    time.sleep(0.2)
    with LISTENER.get().quiet():
        seen.append(counted.stat().st_size)
        time.sleep(0.5)
        seen.append(counted.stat().st_size)
    time.sleep(0.5)
    return [*seen, counted.stat().st_size]


def in_turn(name: str, stage: str) -> str:
    """Note when it begins, and when it is past what its group has in common."""
    with (FOLDER / "order").open("a") as order:
        order.write(f"{name} ")
        order.flush()
        time.sleep(0.3)
        order.write(f"{name}+ ")
    LISTENER.get().begins(stage)
    time.sleep(0.3)
    return name


def jobs(*calls: Callable[[], Any], groups: str = "", efforts: str = "") -> list[Job]:
    return [
        Job(
            name=f"job {number}",
            group=groups[number] if groups else number,
            call=call,
            effort=int(efforts[number]) if efforts else 0,
        )
        for number, call in enumerate(calls)
    ]


SCENARIOS: dict[str, tuple[list[Job], int]] = {
    "mixed": (jobs(partial(fine, 0), refused, killed, partial(fine, 3), unsendable, partial(fine, 5)), 2),
    "timed": (jobs(partial(counting, 3), timed), 2),
    "endless": (jobs(partial(counting, 100), partial(counting, 100)), 2),
    "groups": (jobs(*(partial(in_turn, name, "compile") for name in ("a1", "a2", "b1")), groups="aab"), 2),
    "efforts": (jobs(*(partial(in_turn, name, "compile") for name in ("a", "b", "c", "d")), efforts="0121"), 1),
}


def told(result: Any) -> Any:
    return f"{type(result).__name__}: {result}" if isinstance(result, BaseException) else result


def main() -> None:
    work, width = SCENARIOS[sys.argv[1]]
    results = Pool(work, width, Lines([job.name for job in work])).run()
    (FOLDER / "results").write_text(json.dumps([told(result) for result in results]))


if __name__ == "__main__":
    sys.exit(guarded(main))
