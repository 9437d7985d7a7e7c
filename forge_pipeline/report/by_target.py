"""Latency and memory of all targets as bars: coordinates for the template, in the units of its view box."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from forge_pipeline.report.build import Build, Record
from forge_pipeline.report.figures import milliseconds, size

WIDTH: Final = 960.0
LEFT, MIDDLE, RIGHT = 190.0, 600.0, 850.0
"""Where the bars of latency begin, those of memory, and where the longest of these ends."""
LABEL: Final = 110.0
"""What a bar leaves for the number behind it."""
TOP, ROW = 26.0, 26.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """``x`` to ``x + width``, ``mark`` where the median lies. ``label`` stands behind it; without a width it is all."""

    x: float
    width: float
    mark: float | None
    label: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One target."""

    y: float
    target: str
    latency: Bar
    memory: Bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Everything that `by_target.svg.j2` draws."""

    rows: tuple[Row, ...]
    width: float = WIDTH
    left: float = LEFT
    middle: float = MIDDLE

    @property
    def height(self) -> float:
        """All rows, and the titles above them."""
        return TOP + ROW * len(self.rows)


def by_target(builds: Sequence[Build]) -> Bars | None:
    """Return a row for each target; None where nothing was timed. What was not measured is a dash with its reason."""
    slowest = _most(builds, "latency_p99_ms", "latency_median_ms")
    if slowest is None:
        return None
    latency = _scale(LEFT, MIDDLE - LABEL, slowest)
    memory = _scale(MIDDLE, RIGHT, _most(builds, "peak_kib") or 1.0)
    return Bars(
        rows=tuple(
            Row(
                y=TOP + ROW * index,
                target=build.target,
                latency=_latency(build.metrics, latency),
                memory=_memory(build.metrics, memory),
            )
            for index, build in enumerate(builds)
        )
    )


def _most(builds: Sequence[Build], *names: str) -> float | None:
    found = (build.metrics.get(name) for build in builds for name in names)
    return max((float(value) for value in found if value is not None), default=None)


def _scale(left: float, right: float, most: float) -> Callable[[float], float]:
    return lambda value: round(left + (right - left) * value / most, 1)


def _latency(metrics: Record, at: Callable[[float], float]) -> Bar:
    """From the least time to the 99th percentile; behind it the median, and how near it is to the machine's bound."""
    median = metrics.get("latency_median_ms")
    if median is None:
        return _absent(at(0.0), metrics)
    least, top = metrics.get("latency_min_ms", median), metrics.get("latency_p99_ms", median)
    share = metrics.get("roofline_share")
    bound = "" if share is None else f", {100 * share:.0f} % of the roofline"
    start, end = at(least), at(top)
    return Bar(
        x=start,
        width=max(1.0, round(end - start, 1)),
        mark=at(median),
        label=milliseconds(median),
        title=f"least {milliseconds(least)}, 99 of 100 within {milliseconds(top)}{bound}",
    )


def _memory(metrics: Record, at: Callable[[float], float]) -> Bar:
    peak = metrics.get("peak_kib")
    if peak is None:
        return _absent(at(0.0), metrics)
    whole = size(peak * 1024)
    return Bar(x=at(0.0), width=round(at(peak) - at(0.0), 1), mark=None, label=whole, title=f"{whole}, the process")


def _absent(x: float, metrics: Record) -> Bar:
    why: Any = metrics.get("not_timed") or metrics.get("not_run") or "not measured"
    return Bar(x=x, width=0.0, mark=None, label="\N{EN DASH}", title=str(why))
