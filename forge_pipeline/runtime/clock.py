"""How the time of a run is shared among a model's kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SINGLE = "_of_one"
"""What the kernels of the entry for a batch of one are called, after the name that ``compile.fallbacks`` has."""

RUNTIME = "vm."
"""The beginning of the names of the runtime's own functions, such as those that allocate."""


PLACING = "place_tensors"
"""What the function is called that gives tensors their places in memory: no kernel either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """A kernel's part of a run: calls in a run, milliseconds of them, and their share of all kernels' time, 0..1.

    ``is_fallback`` where `compile.fallbacks` of the metadata lists it: in a quantized model, what stays in float.
    """

    name: str
    calls: int
    milliseconds: float
    share: float
    is_fallback: bool


@dataclass(slots=True)
class Clock:
    """The virtual machine's instrument: it is called before and after each function."""

    calls: dict[str, int] = field(default_factory=dict)
    nanoseconds: dict[str, int] = field(default_factory=dict)
    _start: int = 0

    def __call__(self, _function: Any, name: str, is_before: bool, _result: Any, *_arguments: Any) -> int:
        """Note the time."""
        if is_before:
            self._start = time.perf_counter_ns()
            return 0
        spent = time.perf_counter_ns() - self._start
        self.calls[name] = self.calls.get(name, 0) + 1
        self.nanoseconds[name] = self.nanoseconds.get(name, 0) + spent
        return 0


def profile(run: Callable[[Clock], object], runs: int, fallbacks: Iterable[Mapping[str, Any]]) -> list[KernelTime]:
    """Return each kernel's time in the quickest of ``runs`` runs, most time first; a first run is not counted."""
    run(Clock())
    clocks = []
    for _ in range(runs):
        clock = Clock()
        run(clock)
        clocks.append(clock)
    best = min(clocks, key=lambda clock: sum(_kernels(clock).values()))
    slow = {str(entry["operator"]) for entry in fallbacks}
    spent = _kernels(best)
    total = sum(spent.values()) or 1
    times = [
        KernelTime(
            name=name,
            calls=best.calls[name],
            milliseconds=nanoseconds / 1e6,
            share=nanoseconds / total,
            is_fallback=name.partition(SINGLE)[0] in slow,
        )
        for name, nanoseconds in spent.items()
    ]
    return sorted(times, key=lambda item: (-item.milliseconds, item.name))


def _kernels(clock: Clock) -> dict[str, int]:
    return {name: spent for name, spent in clock.nanoseconds.items() if not name.startswith((RUNTIME, PLACING))}
