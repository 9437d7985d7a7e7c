"""The chart of a target's jobs as coordinates: score against latency, the area of a point for the library's size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from forge_pipeline.report.sweep import Row

WIDTH, HEIGHT = 960.0, 360.0
LEFT, RIGHT, TOP, BASE = 64.0, 30.0, 24.0, 306.0
RADIUS = 11.0
"""Of the largest library's point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """One job's point."""

    row: Row
    x: float
    y: float
    radius: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """What the template draws, in the units of its view box; ticks are pairs of place and text.

    ``across`` and ``up`` say what the axes are. ``line`` joins the jobs that no other beats on both axes.
    """

    spots: tuple[Spot, ...]
    line: str
    across: str
    up: str
    columns: tuple[tuple[float, str], ...]
    lines: tuple[tuple[float, str], ...]
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    base: float = BASE


def scatter(rows: Sequence[Row]) -> Scatter | None:
    """Return the chart of one target's jobs; None for fewer than two, and where no two figures of all are known."""
    scored = all(row.job.score is not None for row in rows)
    timed = all(row.job.latency_ms is not None for row in rows)
    if len(rows) < 2 or not (scored or timed):
        return None
    sizes = [row.job.library_bytes / 1000 for row in rows]
    scores = [row.job.score or 0.0 for row in rows]
    xs, across = ([row.job.latency_ms or 0.0 for row in rows], "latency, ms") if timed else (sizes, "library, KB")
    ys, up = (scores, rows[0].job.metric) if scored else (sizes, "library, KB")
    losses = [row.job.drop or 0.0 for row in rows] if scored else sizes
    columns, lines = _ticks(min(xs), max(xs)), _ticks(min(ys), max(ys))
    spots = tuple(
        Spot(
            row=row,
            x=_place(x, columns, LEFT + RADIUS, WIDTH - RIGHT - RADIUS),
            y=_place(y, lines, BASE - RADIUS, TOP + RADIUS),
            radius=round(RADIUS * math.sqrt(size / max(sizes)), 1) if max(sizes) else RADIUS,
        )
        for row, x, y, size in zip(rows, xs, ys, sizes, strict=True)
    )
    best: list[Spot] = []
    least = math.inf
    for _, loss, spot in sorted(zip(xs, losses, spots, strict=True), key=lambda item: item[:2]):
        if loss < least:
            best.append(spot)
            least = loss
    return Scatter(
        spots=tuple(sorted(spots, key=lambda spot: spot.row.front)),  # the best are drawn last, above the others
        line=" ".join(f"{spot.x},{spot.y}" for spot in best),
        across=across,
        up=up,
        columns=tuple((_place(x, columns, LEFT + RADIUS, WIDTH - RIGHT - RADIUS), f"{x:.6g}") for x in columns),
        lines=tuple((_place(y, lines, BASE - RADIUS, TOP + RADIUS), f"{y:.6g}") for y in lines),
    )


def _ticks(least: float, most: float) -> list[float]:
    """Return round numbers, four to eight, that have both between them."""
    span = (most - least) or abs(most) * 0.1 or 1.0
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if span / step <= 5)
    first, last = math.floor(least / step), math.ceil(most / step)
    return [count * step for count in range(first, max(last, first + 1) + 1)]


def _place(value: float, ticks: Sequence[float], low: float, high: float) -> float:
    return round(low + (value - ticks[0]) / (ticks[-1] - ticks[0]) * (high - low), 1)
