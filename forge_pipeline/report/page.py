"""Builds -> one HTML page. Every text that comes from a model or a file is escaped by the template engine."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from forge_pipeline.errors import ConfigError
from forge_pipeline.report import figures
from forge_pipeline.report.build import About, Build
from forge_pipeline.report.by_target import by_target
from forge_pipeline.report.chart import Chart, chart
from forge_runtime.text import shown

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATE = "page.html.j2"
MAIN_OUTPUTS = ("model_library.so", "model.onnx", "ranges.npz", "metrics.json")


def require() -> None:
    """Raise ConfigError where jinja2, which writes the page, is not installed."""
    if find_spec("jinja2") is None:
        raise ConfigError(
            "report", "jinja2, to write the page", "no module jinja2", "pip install 'forge-pipeline[report]'"
        )


def environment() -> Environment:
    """Return what renders the templates beside this module. Raises ConfigError where jinja2 is not installed."""
    require()
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("forge_pipeline.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: shown(value) if isinstance(value, str) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= figures.FILTERS
    return made


def render(builds: Sequence[Build], about: About) -> str:
    """Return the page; the same arguments give the same text. Raises ConfigError where jinja2 is not installed."""
    if not builds:
        raise ConfigError("report", "at least one build", "none", "run `dvc repro`")
    rows = [row for build in builds for row in build.rows]
    return (
        environment()
        .get_template(TEMPLATE)
        .render(
            about=about,
            keys={stage["action_key"] for build in builds for stage in build.stages},
            builds=builds,
            groups=_groups(builds),
            stages=_stages(builds),
            rows=rows,
            machines=_machines(rows),
            absent=_absent(rows),
            bars=by_target(rows),
            timed=[row for row in rows if row.metrics.get("kernels")],
            model=builds[0].metadata,
        )
    )


def _groups(builds: Sequence[Build]) -> list[dict[str, Any]]:
    """Return one chart for each different table of layers, with the targets that it holds for."""
    groups: list[tuple[Build, Chart | None, list[str]]] = []
    for build in builds:
        for first, _, targets in groups:
            if list(first.layers) == list(build.layers):
                targets.append(build.target)
                break
        else:
            groups.append((build, chart(build.layers, build.names), [build.target]))
    return [{"chart": drawn, "targets": targets} for _, drawn, targets in groups]


def _machines(builds: Sequence[Build]) -> list[tuple[str, int]]:
    """Return on which machines latency was measured, and in how many runs."""
    found = {(b.metrics["cpu"], b.metrics["latency_runs"]) for b in builds if "latency_runs" in b.metrics}
    return sorted(found)


def _absent(builds: Sequence[Build]) -> list[tuple[list[str], str]]:
    """Return the targets that this machine could not run, by reason."""
    reasons: dict[str, list[str]] = {}
    for build in builds:
        if build.metrics["compiled"] is None:
            reasons.setdefault(build.metrics["not_run"], []).append(build.target)
    return [(targets, reason) for reason, targets in reasons.items()]


def _stages(builds: Sequence[Build]) -> list[dict[str, Any]]:
    """Return the stages in the order of the build, each action once, with the targets that it served."""
    order: list[str] = []
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for build in builds:
        for record in build.stages:
            if record["stage"] not in order:
                order.append(record["stage"])
            main = next((name for name in MAIN_OUTPUTS if name in record["outputs"]), min(record["outputs"]))
            fresh = {**record, "main": main, "targets": []}
            entry = found.setdefault((record["stage"], record["action_key"]), fresh)
            entry["targets"].append(build.target)
    longest = max((entry["seconds"] for entry in found.values()), default=0.0) or 1.0
    rows = sorted(found.values(), key=lambda entry: order.index(entry["stage"]))
    return [
        {**row, "share": row["seconds"] / longest, "everywhere": len(row["targets"]) == len(builds)} for row in rows
    ]
