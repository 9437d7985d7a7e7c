"""metrics of several CPUs -> metrics: each variant's, and at the top those of the one that a reader looks at first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forge_pipeline.evaluation.results import VARIANTS, VARIANTS_LATENCY, Metrics
from forge_pipeline.runtime.variants import Combined
from forge_pipeline.stages.combine import Config, Several
from forge_pipeline.stages.contract import PART, Result, step
from forge_pipeline.target import HOST

__all__ = ["Config", "Several", "run"]

SIZE = "size_library_bytes"


def run(config: Config, *, library: Combined, **parts: Metrics) -> Result:
    """Return Metrics with those of all variants by tag, and at the top the leading one's with the size of the whole.

    That is the variant which a device like this machine opens, the first that ran here; else the first that ran
    anywhere; else the first.
    """
    metrics = {tag: parts[step(PART, tag)] for tag in library.tags}
    leading = metrics[_leading({tag: found.values for tag, found in metrics.items()})]
    values = {tag: dict(found.values) for tag, found in metrics.items()}
    latency = {tag: dict(found.latency) for tag, found in metrics.items()}
    size = {SIZE: len(library.content())}
    report = {"variants": {tag: _told(found) for tag, found in values.items()}}
    return Result(
        output=Metrics(
            values={**leading.values, **size, VARIANTS: values},
            latency={**leading.latency, VARIANTS_LATENCY: latency},
            layers=leading.layers,
        ),
        report={**report, "notes": [f"{tag}: {told}" for tag, told in report["variants"].items()]},
    )


def _leading(metrics: Mapping[str, Mapping[str, Any]]) -> str:
    here = (tag for tag, found in metrics.items() if found.get("ran_in") == HOST)
    anywhere = (tag for tag, found in metrics.items() if found.get("compiled") is not None)
    return next(here, next(anywhere, next(iter(metrics))))


def _told(found: Mapping[str, Any]) -> str:
    if found.get("compiled") is None:
        return f"not run: {found.get('not_run')}"
    return f"{found['metric']} {found['compiled']:g}, run in {found['ran_in']}"
