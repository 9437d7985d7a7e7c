"""A picture of what calibration saw: one strip per value, as SVG with the same bytes on every machine."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from forge_runtime.text import shown

if TYPE_CHECKING:
    from forge_pipeline.quantization.calibration.ranges import Ranges
    from forge_pipeline.quantization.calibration.statistics import Statistics

NAME, STRIP, NUMBERS, ROW, COLUMNS = 150, 480, 210, 34, 120
STYLE = (
    "text{font:11px ui-monospace,monospace;fill:#222}.bar{fill:#3b6ea5}.zero{stroke:#c33;stroke-width:1}"
    ".mean{stroke:#e69f00;stroke-width:2}.base{stroke:#bbb;stroke-width:1}"
)


def histograms_svg(ranges: Ranges) -> bytes:
    """Draw each value's histogram between its extrema, on a logarithmic scale of counts.

    The red line is zero; the orange ticks are the means of the samples' extrema: far inside the strip, they say that
    few samples have outliers.
    """
    rows = [(name, ranges[name]) for name in sorted(ranges, key=_natural)]
    width, height = NAME + STRIP + NUMBERS, ROW * (len(rows) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><style>{STYLE}</style>'
        f'<rect width="{width}" height="{height}" fill="#fff"/>'
        f'<text x="8" y="20">{ranges.samples} samples</text>'
        f'<text x="{NAME + STRIP + 12}" y="20">min .. max</text>'
    ]
    for index, (name, statistics) in enumerate(rows, start=1):
        parts.append(_strip(name, statistics, index * ROW))
    return "".join([*parts, "</svg>\n"]).encode()


def _strip(name: str, statistics: Statistics, top: int) -> str:
    low, high = statistics.low, statistics.high
    span = (high - low) or 1.0
    base = top + ROW - 6
    counts = _resampled(statistics)
    tallest = float(np.log1p(counts).max()) or 1.0
    step = STRIP / COLUMNS
    bars = "".join(
        f'<rect class="bar" x="{NAME + column * step:.1f}" y="{base - size:.1f}" '
        f'width="{step:.1f}" height="{size:.1f}"/>'
        for column, count in enumerate(counts)
        if (size := (ROW - 12) * float(np.log1p(count)) / tallest) > 0.05
    )

    def across(value: float) -> float:
        return NAME + STRIP * min(max((value - low) / span, 0.0), 1.0)

    ticks = "".join(
        f'<line class="mean" x1="{across(end):.1f}" x2="{across(end):.1f}" y1="{base - 6}" y2="{base + 3}"/>'
        for end in statistics.average
    )
    zero = across(0.0)
    line = (
        f'<line class="zero" x1="{zero:.1f}" x2="{zero:.1f}" y1="{top + 4}" y2="{base}"/>' if low <= 0 <= high else ""
    )
    name = shown(name)
    short = name if len(name) <= 20 else f"{name[:9]}..{name[-9:]}"
    return (
        f'<g><title>{escape(name)}</title><text x="8" y="{base - 4}">{escape(short)}</text>'
        f'<line class="base" x1="{NAME}" x2="{NAME + STRIP}" y1="{base}" y2="{base}"/>{bars}{line}{ticks}'
        f'<text x="{NAME + STRIP + 12}" y="{base - 4}">{low:.5g} .. {high:.5g}</text></g>'
    )


def _resampled(statistics: Statistics) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The counts in ``COLUMNS`` equal columns between the extrema; a bin across a border is shared out."""
    cumulated = np.concatenate([[0], np.cumsum(statistics.histogram)]).astype(np.float64)
    borders = np.linspace(statistics.low, max(statistics.high, np.nextafter(statistics.low, np.inf)), COLUMNS + 1)
    counts: np.ndarray[tuple[int], np.dtype[np.float64]] = np.diff(np.interp(borders, statistics.edges, cumulated))
    return counts


def _natural(name: str) -> tuple[int, str]:
    """v2 before v10: canonical names are in the order of computation."""
    digits = name[1:]
    return (int(digits), name) if digits.isdigit() else (-1, name)
