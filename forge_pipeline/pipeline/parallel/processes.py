"""Trees of processes: held still while something is timed, and ended so that none is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PATIENCE = 10.0  # seconds that a process has to tidy up


def tree(pid: int) -> list[int]:
    """Return a process and all that it started and that still run, each before those that it started itself."""
    found = [pid]
    for parent in found:  # grows while it is read
        with suppress(OSError):  # it has ended
            for thread in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found


def hold(pid: int) -> None:
    """Stop a tree of processes. Who is stopped starts no other, so a second look finds those that were missed."""
    held: list[int] = []
    while new := [one for one in tree(pid) if one not in held]:
        send(new, signal.SIGSTOP)
        held += new


def resume(pid: int) -> None:
    """Let a tree of processes go on."""
    send(tree(pid), signal.SIGCONT)


def end(pids: Iterable[int]) -> None:
    """Ask children of this process to end, and to end what they started; kill what has not done so in time."""
    waiting = set(pids)
    started: dict[int, str | None] = {}
    for pid in waiting:
        hold(pid)  # so that nothing is started between the look at what there is and the signal
        started |= {member: _born(member) for member in tree(pid)[1:]}
        send([pid], signal.SIGTERM)
        resume(pid)
    until = time.monotonic() + PATIENCE
    while (waiting := {pid for pid in waiting if not _collected(pid, os.WNOHANG)}) and time.monotonic() < until:
        time.sleep(0.01)
    for pid in waiting:
        send(tree(pid), signal.SIGKILL)
        _collected(pid, 0)
    # Who is asked while it starts a program does not know that program yet, and cannot end it.
    send((pid for pid, born in started.items() if born is not None and _born(pid) == born), signal.SIGKILL)


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to those that are there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _collected(pid: int, flags: int) -> bool:
    """Say whether a child has ended, and let go of it."""
    try:
        return os.waitpid(pid, flags)[0] == pid
    except ChildProcessError:
        return True


def _born(pid: int) -> str | None:
    """Return when a process was started, in ticks since the machine was: with its number, that is the process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None
