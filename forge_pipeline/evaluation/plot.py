"""A picture of where the noise comes from: a bar per layer, as SVG with the same bytes on every machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from forge_runtime.text import shown

NAME, BAR, NUMBERS, ROW, WORST = 230, 380, 320, 20, 3
STYLE = "text{font:11px ui-monospace,monospace;fill:#222}.bar{fill:#3b6ea5}.worst{fill:#c33}.head{font-weight:bold}"


def layers_svg(layers: Sequence[Mapping[str, Any]]) -> bytes:
    """Draw the records of `layers.json` in the order of computation.

    A bar is the layer's share of the noise that all layers add, each fed with exact values; those that add most are
    red and numbered. Beside it: the SQNR of the layer on its own, and at its place in the whole model.
    """
    width, height = NAME + BAR + NUMBERS, ROW * (len(layers) + 2)
    noisy = sorted((-row["noise_share"], place) for place, row in enumerate(layers) if row["noise_share"])
    ranks = {place: rank for rank, (_, place) in enumerate(noisy[:WORST], start=1)}
    most = max((row["noise_share"] for row in layers), default=0.0) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><style>{STYLE}</style><rect width="{width}" height="{height}" fill="#fff"/>'
        f'<text class="head" x="8" y="{ROW - 5}">layer</text>'
        f'<text class="head" x="{NAME}" y="{ROW - 5}">share of the noise</text>'
        f'<text class="head" x="{NAME + BAR + 12}" y="{ROW - 5}">SQNR dB alone, in the model; operators</text>'
    ]
    for place, row in enumerate(layers):
        parts.append(_bar(row, (place + 1) * ROW, row["noise_share"] / most, ranks.get(place)))
    return "".join([*parts, "</svg>\n"]).encode()


def _bar(row: Mapping[str, Any], top: int, length: float, rank: int | None) -> str:
    layer = shown(row["layer"])
    name = layer if len(layer) <= 30 else f"{layer[:14]}..{layer[-14:]}"
    size = BAR * 0.8 * length
    mark = f" #{rank}" if rank else ""
    figures = f"{_decibel(row['own_sqnr_db'])}  {_decibel(row['sqnr_db'])}  {shown(row['operator'], 100)}"
    return (
        f'<g><title>{escape(layer)}</title><text x="8" y="{top + 14}">{escape(name)}</text>'
        f'<rect class="{"worst" if rank else "bar"}" x="{NAME}" y="{top + 3}" width="{size:.1f}" height="{ROW - 6}"/>'
        f'<text x="{NAME + size + 6:.1f}" y="{top + 14}">{row["noise_share"]:.4g} %{mark}</text>'
        f'<text x="{NAME + BAR + 12}" y="{top + 14}">{escape(figures)}</text></g>'
    )


def _decibel(value: float | None) -> str:
    return "exact" if value is None else f"{value:.1f}"
