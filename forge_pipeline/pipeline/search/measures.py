"""What a trial is judged by: the figures of its deliveries, what is wanted least of them, and what must hold."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_pipeline.errors import ConfigError, ForgeError, did_you_mean

Figures = Mapping[str, Mapping[str, float]]
"""By target, by name of the figure; one that was not measured is not there."""

FIGURES = {
    "accuracy_drop": ("metrics.json", "drop", 1.0),
    "latency_ms": ("latency.json", "latency_median_ms", 1.0),
    "latency_least_ms": ("latency.json", "latency_min_ms", 1.0),
    "open_ms": ("latency.json", "open_ms", 1.0),
    "memory_kb": ("latency.json", "peak_kib", 1.024),
    "library_kb": ("metrics.json", "size_library_bytes", 0.001),
    "model_kb": ("metrics.json", "size_quantized_bytes", 0.001),
}
"""Each figure's file among the deliverables, its name there, and what that is multiplied by; less is better of all."""

_BOUND = re.compile(r"\s*(\w+)(?:@([^\s<>=@]+))?\s*<=\s*([-+.\w]+)(?:@([^\s<>=@]+))?\s*")
_WANTED = re.compile(r"\s*(\w+)(?:@([^\s<>=@]+))?\s*")


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of one target, or with ``target`` None the largest of the targets that are searched for."""

    figure: str
    target: str | None

    def __str__(self) -> str:
        return self.figure if self.target is None else f"{self.figure}@{self.target}"

    def of(self, figures: Figures, own: Sequence[str]) -> float:
        """Return its value, where ``own`` are the targets that are searched for. Raises KeyError if not measured."""
        return max(figures[tag][self.figure] for tag in (own if self.target is None else [self.target]))


@dataclass(frozen=True, slots=True)
class Bound:
    """A measure that must be at most ``most``."""

    measure: Measure
    most: float

    def __str__(self) -> str:
        return f"{self.measure}<={self.most:g}"


def wanted(texts: Any) -> tuple[Measure, ...]:
    """Read such as `[latency_ms, library_kb@raspberry-pi/5]`. Raises ConfigError."""
    found = tuple(_wanted(text) for text in _texts(texts, "want"))
    if not found:
        raise ConfigError("hydra.sweeper.want", "at least one figure", "none", f"choose of {', '.join(FIGURES)}")
    return found


def bounds(texts: Any, option: str) -> tuple[Bound, ...]:
    """Read such as `[accuracy_drop<=0.5, latency_ms<=20@raspberry-pi/5]`. Raises ConfigError."""
    return tuple(_bound(text, f"hydra.sweeper.{option}") for text in _texts(texts, option))


def _texts(given: Any, option: str) -> list[str]:
    if isinstance(given, str):  # as from a shell
        return [text for text in given.strip().removeprefix("[").removesuffix("]").split(",") if text.strip()]
    if not isinstance(given, Sequence) or not all(isinstance(text, str) for text in given):
        raise ConfigError(f"hydra.sweeper.{option}", "a list of texts", repr(given), "see docs/search.md")
    return list(given)


def _wanted(text: str) -> Measure:
    match = _WANTED.fullmatch(text)
    if match is None:
        raise ConfigError("hydra.sweeper.want", "FIGURE or FIGURE@TARGET", repr(text), "see docs/search.md")
    return Measure(_known(match[1], "hydra.sweeper.want"), match[2])


def _bound(text: str, where: str) -> Bound:
    match = _BOUND.fullmatch(text)
    if match is not None and None in (match[2], match[4]):  # the target is named once: with the figure, or at the end
        figure = _known(match[1], where)
        with suppress(ValueError):
            return Bound(Measure(figure, match[2] or match[4]), float(match[3]))
    raise ConfigError(where, "FIGURE<=NUMBER or FIGURE<=NUMBER@TARGET", repr(text), "see docs/search.md")


def _known(figure: str, where: str) -> str:
    if figure not in FIGURES:
        expected = "one of " + ", ".join(FIGURES)
        raise ConfigError(where, expected, repr(figure), f"{did_you_mean(figure, FIGURES)}see docs/search.md")
    return figure


def read_figures(delivery: Path) -> dict[str, float]:
    """Return the figures of a delivery that were measured."""
    files = {name: json.loads((delivery / name).read_bytes()) for name, _, _ in FIGURES.values()}
    values = {figure: (files[name].get(key), factor) for figure, (name, key, factor) in FIGURES.items()}
    return {figure: float(f"{value * factor:.6g}") for figure, (value, factor) in values.items() if value is not None}


def why_missing(delivery: Path, figure: str) -> str:
    """Return what the delivery says of a figure that was not measured."""
    said = {
        **json.loads((delivery / "latency.json").read_bytes()),
        **json.loads((delivery / "metrics.json").read_bytes()),
    }
    return str(said.get("not_timed") or said.get("not_run") or f"no {figure} was measured")


def require(measures: Iterable[Measure], figures: Figures, own: Sequence[str], deliveries: Mapping[str, Path]) -> None:
    """Raise ForgeError for the first of ``measures`` that was not measured."""
    for measure in measures:
        for tag in own if measure.target is None else [measure.target]:
            if measure.figure not in figures[tag]:
                raise ForgeError(
                    where=f"{measure.figure}@{tag}",
                    expected="a figure that is measured where this search runs",
                    found=why_missing(deliveries[tag], measure.figure),
                    fix="give a board (hydra.sweeper.devices={TARGET: NAME}), or data, or want another figure",
                )
