"""How the time of a run is shared among a model's kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SINGLE = "_of_one"
"""What the kernels of the entry for a batch of one are called, after the name that ``compile.fallbacks`` has."""
PREFIX = "__tvm_ffi_"
"""The beginning of the symbols of kernels."""

Run = Sequence[tuple[str, int, int]]
"""Of each place in the program that calls a kernel: its symbol, the calls there, and their nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """A kernel's part of a run: calls in a run, milliseconds of them, and their share of all kernels' time, 0..1.

    ``is_fallback`` where `compile.fallbacks` of the metadata lists it: in a quantized model, what stays in float.
    ``place`` tells apart the places of the program that call it, from 0 on; None where it is all of them together.
    """

    name: str
    calls: int
    milliseconds: float
    share: float
    is_fallback: bool
    place: int | None = None


def profile(
    run: Callable[[], Run], runs: int, fallbacks: Iterable[Mapping[str, Any]], *, apart: bool = False
) -> list[KernelTime]:
    """Return each kernel's time in the quickest of ``runs`` runs, most time first; a first run is not counted.

    ``apart``: that of each place which calls a kernel.
    """
    run()
    best = min((run() for _ in range(runs)), key=lambda rows: sum(spent for _, _, spent in rows))
    places: Counter[str] = Counter()
    found: dict[tuple[str, int | None], tuple[int, int]] = {}
    for symbol, calls, spent in best:
        name = symbol.removeprefix(PREFIX)
        key = name, places[name] if apart else None
        places[name] += 1
        before = found.get(key, (0, 0))
        found[key] = before[0] + calls, before[1] + spent
    slow = {str(entry["operator"]) for entry in fallbacks}
    total = sum(spent for _, spent in found.values()) or 1
    times = [
        KernelTime(
            name=name,
            calls=calls,
            milliseconds=nanoseconds / 1e6,
            share=nanoseconds / total,
            is_fallback=name.partition(SINGLE)[0] in slow,
            place=place,
        )
        for (name, place), (calls, nanoseconds) in found.items()
        if calls
    ]
    return sorted(times, key=lambda item: (-item.milliseconds, item.name))
