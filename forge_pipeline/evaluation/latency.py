"""How long one call takes, in a pause-free series of calls on one thread after a warm-up; and on which processor."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

WARM_UP = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Milliseconds a call. The minimum is the machine undisturbed, the median what it gives as a rule."""

    median_ms: float
    min_ms: float
    runs: int


def measure(call: Callable[[], object], runs: int) -> Latency:
    """Time ``runs`` calls by the wall clock."""
    for _ in range(WARM_UP):
        call()
    times = []
    for _ in range(runs):
        start = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start) / 1e6)
    return Latency(median_ms=statistics.median(times), min_ms=min(times), runs=runs)


CPUINFO = Path("/proc/cpuinfo")
NAMES = ("model name", "Model", "cpu model", "uarch")
"""Where Linux writes it, by architecture: x86, boards with a device tree, others, RISC-V."""


def cpu_name() -> str:
    """Return `x86_64, AMD EPYC 7B13`: the processor's architecture and, where the system tells it, its name."""
    arch = platform.machine()
    fields: dict[str, str] = {}
    if CPUINFO.exists():
        for line in CPUINFO.read_text("utf-8", "replace").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), " ".join(value.split()))
    name = next((fields[key] for key in NAMES if fields.get(key)), "")
    return f"{arch}, {name}" if name else arch
