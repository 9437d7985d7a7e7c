"""How many jobs this machine does at once, or runs of a model."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PER_JOB = 2 << 30
"""Bytes of memory that a job may take: a model of 50 MB takes 1.1 GiB (ResNet-18, for any target)."""


def width_of(jobs: int | None, count: int) -> int:
    """Return how many of ``count`` jobs to do at once: what was asked for, else as many as cores and memory allow."""
    wanted = jobs if jobs is not None else min(cores(), free_memory() // PER_JOB)
    return max(1, min(wanted, count))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def free_memory() -> int:
    """Return the bytes that this machine, or the container that this runs in, can still give."""
    free = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, LookupError, ValueError):
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free.append(int(lines["MemAvailable"].split()[0]) << 10)
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # "max" where there is no limit
        free.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return max(0, min(free))
