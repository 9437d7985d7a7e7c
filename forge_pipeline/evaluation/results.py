"""What evaluate gives: flat numbers that `dvc metrics show` prints, and records that `dvc plots show` draws."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Value = float | int | str | None
VARIANTS = "variants"
"""What metrics of a library for several CPUs have beside: the values of each of them, by tag."""
VARIANTS_LATENCY = "variants_latency"
"""The same of what was measured of speed: another name, since readers put both files into one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """``values``: flat, by name, but for VARIANTS. ``latency``: likewise, what was measured of the speed, but for
    VARIANTS_LATENCY and `kernels`, a record for each of the slowest; empty where it cannot run. ``layers``: one record
    a layer, in the order of computation.
    """

    values: Mapping[str, Any]
    latency: Mapping[str, Any]
    layers: tuple[Mapping[str, Value], ...]

    def metrics_bytes(self) -> bytes:
        """Return `metrics.json`: one JSON object, sorted by name."""
        return _json(dict(self.values))

    def latency_bytes(self) -> bytes:
        """Return `latency.json`: one JSON object, sorted by name."""
        return _json(dict(self.latency))

    def layers_bytes(self) -> bytes:
        """Return `layers.json`: a JSON list of records."""
        return _json([dict(record) for record in self.layers])

    @classmethod
    def from_bytes(cls, metrics: bytes, latency: bytes, layers: bytes) -> Metrics:
        """Read the three files that the methods of these names give: the same again."""
        return cls(values=json.loads(metrics), latency=json.loads(latency), layers=tuple(json.loads(layers)))


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def rounded(value: Any) -> float | None:
    """Return six significant digits: more than any of these figures carries from one kind of machine to another."""
    return None if value is None else float(f"{value:.6g}")
