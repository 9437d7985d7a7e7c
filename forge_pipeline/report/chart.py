"""The per-layer chart as coordinates: measured SQNR as a line above, each layer's share of the noise as bars below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 960.0, 340.0
LEFT, RIGHT, TOP = 52.0, 14.0, 14.0
LINE_BASE, BAR_TOP, BAR_BASE = 200.0, 236.0, 316.0
WORST = 3
STEPS_DB = (2, 5, 10, 20, 50)
STEPS_PERCENT = (5, 10, 20, 50)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One layer. ``y`` is None where it has no noise; ``rank`` is 1 for the layer that adds most."""

    x: float
    y: float | None
    bar: float
    layer: str
    operator: str
    sqnr_db: float | None
    own_sqnr_db: float | None
    noise_share: float
    rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Everything that the template draws, in the units of its view box; ticks are pairs of height and value."""

    points: tuple[Point, ...]
    line: str
    decibels: tuple[tuple[float, int], ...]
    percents: tuple[tuple[float, int], ...]
    bar_width: float
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    base: float = BAR_BASE

    @property
    def worst(self) -> list[Point]:
        """The layers that add most noise, the worst first."""
        return sorted((point for point in self.points if point.rank), key=lambda point: point.rank or 0)


def chart(layers: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> Chart | None:
    """Return the chart of `layers.json`, or None where no layer has any noise."""
    measured = [layer["sqnr_db"] for layer in layers if layer["sqnr_db"] is not None]
    if not measured:
        return None
    low, high, step = _scale(min(measured), max(measured), STEPS_DB)
    _, most, share_step = _scale(0.0, max(layer["noise_share"] for layer in layers), STEPS_PERCENT)
    ranks = _ranks(layers)
    gap = (WIDTH - LEFT - RIGHT) / len(layers)
    points = tuple(
        Point(
            x=round(LEFT + gap * (position + 0.5), 1),
            y=None if layer["sqnr_db"] is None else _height(layer["sqnr_db"], low, high, TOP, LINE_BASE),
            bar=_height(layer["noise_share"], 0, most, BAR_TOP, BAR_BASE),
            layer=names.get(layer["layer"], layer["layer"]),
            operator=layer["operator"],
            sqnr_db=layer["sqnr_db"],
            own_sqnr_db=layer["own_sqnr_db"],
            noise_share=layer["noise_share"],
            rank=ranks.get(position),
        )
        for position, layer in enumerate(layers)
    )
    return Chart(
        points=points,
        line=" ".join(f"{point.x},{point.y}" for point in points if point.y is not None),
        decibels=tuple((_height(tick, low, high, TOP, LINE_BASE), tick) for tick in range(low, high + 1, step)),
        percents=tuple((_height(tick, 0, most, BAR_TOP, BAR_BASE), tick) for tick in range(0, most + 1, share_step)),
        bar_width=round(min(14.0, max(1.0, gap * 0.55)), 1),
    )


def _height(value: float, low: float, high: float, top: float, base: float) -> float:
    return round(base - (value - low) / (high - low) * (base - top), 1)


def _scale(least: float, most: float, steps: Sequence[int]) -> tuple[int, int, int]:
    """Return round limits around ``least`` and ``most``, at least a step apart, and the step: five ticks or so."""
    step = next((step for step in steps if (most - least) / step <= 4), steps[-1])
    low = math.floor(least / step) * step
    return low, max(math.ceil(most / step) * step, low + step), step


def _ranks(layers: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    noisy = sorted((-layer["noise_share"], position) for position, layer in enumerate(layers) if layer["noise_share"])
    return {position: rank for rank, (_, position) in enumerate(noisy[:WORST], start=1)}
