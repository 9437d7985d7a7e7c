"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

ABSENT = "\N{EN DASH}"
UNITS = ("B", "KB", "MB", "GB")
PERCENT = ("top1", "top5")


def decibel(value: float | None) -> str:
    """Return `35.1 dB`."""
    return ABSENT if value is None else f"{value:.1f} dB"


def score(value: float | None, metric: str) -> str:
    """Return a score in its metric's manner: `98.80 %` for top-k, four significant digits for others."""
    if value is None:
        return ABSENT
    return f"{value:.2f} %" if metric in PERCENT else f"{value:.4g}"


def change(value: float | None, base: float | None) -> str:
    """Return the signed difference of two scores, or nothing where there is none to speak of."""
    if value is None or base is None:
        return ""
    difference = float(f"{value - base:.3g}")
    return f"{difference:+g}".replace("-", "\N{MINUS SIGN}") if difference else "±0"


def size(count: float | None) -> str:
    """Return a byte count with three significant digits: `106 KB`."""
    if count is None:
        return ABSENT
    for unit in UNITS[:-1]:
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} {UNITS[-1]}"


def milliseconds(value: float | None) -> str:
    """Return `0.123 ms`, three significant digits."""
    return ABSENT if value is None else f"{value:.3g} ms"


def day(seconds: float) -> str:
    """Return a time as people read it, to the minute, in this machine's zone."""
    return datetime.fromtimestamp(max(0.0, min(seconds, 1e11))).astimezone().strftime("%Y-%m-%d %H:%M")


def interface(values: list[Mapping[str, Any]]) -> str:
    """Return `image float32 [batch, 1, 8, 8]` for each input or output of the metadata."""
    return ", ".join(f"{value['name']} {value['dtype']} [{', '.join(map(str, value['shape']))}]" for value in values)


FILTERS: dict[str, Callable[..., Any]] = {
    "decibel": decibel,
    "score": score,
    "change": change,
    "size": size,
    "milliseconds": milliseconds,
    "interface": interface,
}
