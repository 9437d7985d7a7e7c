"""How long one call takes: a pause-free series of calls on one thread, after a warm-up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

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
