"""How the time of a run is shared among a model's kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SINGLE = "_of_one"
"""What the kernels of the entry for a batch of one are called, after the name that ``compile.fallbacks`` has."""
PREFIX = "__tvm_ffi_"
"""The beginning of the symbols of kernels."""

Run = Sequence[tuple[str, int, int]]
"""Of each kernel: its symbol, its calls, and their nanoseconds."""


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


def profile(run: Callable[[], Run], runs: int, fallbacks: Iterable[Mapping[str, Any]]) -> list[KernelTime]:
    """Return each kernel's time in the quickest of ``runs`` runs, most time first; a first run is not counted."""
    run()
    best = min((_kernels(run()) for _ in range(runs)), key=lambda rows: sum(spent for _, _, spent in rows))
    slow = {str(entry["operator"]) for entry in fallbacks}
    total = sum(spent for _, _, spent in best) or 1
    times = [
        KernelTime(
            name=name,
            calls=calls,
            milliseconds=nanoseconds / 1e6,
            share=nanoseconds / total,
            is_fallback=name.partition(SINGLE)[0] in slow,
        )
        for name, calls, nanoseconds in best
    ]
    return sorted(times, key=lambda item: (-item.milliseconds, item.name))


def _kernels(run: Run) -> Run:
    return [(symbol.removeprefix(PREFIX), calls, spent) for symbol, calls, spent in run if calls]
