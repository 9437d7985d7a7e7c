"""Jobs of a sweep as their deliveries say them, for tests of what is shown of them."""

from __future__ import annotations

import hashlib
from typing import Any

from forge_pipeline.report.sweep import Job

HOSTILE = "</title><script>alert(1)</script>\"' onload='x' {{ 7 * 7 }} & <img src=//evil>"


def job(name: str, **changes: Any) -> Job:
    """Return a job called ``name`` that was timed, with ``changes``."""
    values: dict[str, Any] = {
        "name": name, "target": "host", "options": {"quantize.per_channel": "true", "fold.passes": "[]"},
        "metric": "top1", "score": 90.0, "drop": 1.0, "latency_ms": 2.0, "library_bytes": 100_000, "peak_kib": 512,
        "not_timed": "", "built": 3, "hits": 4, "seconds": 1.5, "digest": hashlib.sha256(name.encode()).hexdigest(),
    }  # fmt: skip
    return Job(**{**values, **changes})


def several() -> list[Job]:
    """Return jobs of two targets, one of which was not timed, with a front of two on the other."""
    return [
        job("a", latency_ms=1.0, drop=2.0, score=89.0, options={"quantize.method": "static"}),
        job("b", latency_ms=4.0, drop=0.0, score=91.0, options={"quantize.method": "none"}),
        job("c", latency_ms=4.5, drop=2.5, score=88.5, options={"quantize.method": "dynamic"}),
        job("d", target="android/cpu", latency_ms=None, not_timed="no such machine here"),
    ]
