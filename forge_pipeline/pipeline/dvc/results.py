"""results/: what is committed of a build, for `dvc metrics diff`, `dvc plots diff` and `dvc exp show` at any commit.

`results/metrics.json` has the few numbers by which builds are chosen, for each target; `results/layers/` where the
noise comes from. They follow from the content, but for the latency: that is kept as it was first measured for as long
as the build stays the same, so that another machine which builds the same changes no committed file.
`results/measured.json` says of which build it is, and on what it was measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forge_pipeline.content import open_stream
from forge_pipeline.evaluation.results import VARIANTS
from forge_pipeline.pipeline.deliver import write_atomically
from forge_pipeline.report.build import Build
from forge_pipeline.stages import giving

RESULTS = Path("results")
METRICS, MEASURED, LAYERS = RESULTS / "metrics.json", RESULTS / "measured.json", RESULTS / "layers"
COMPILED = "compiled"
SCORES = ("float", "quantized", COMPILED, "size_library_bytes")
TIMED, PLACE = ("latency_median_ms",), ("cpu", "machine")


def write_results(builds: Sequence[Build], root: Path = Path()) -> None:
    """Write ``root``/results for these builds; nothing of an earlier build's is left but what was measured of these."""
    before = _read(root / MEASURED)
    measured = {build.target: _measured(build, before.get(build.target)) for build in builds}
    metrics = {build.target: _scores(build) | measured[build.target]["metrics"] for build in builds}
    layers = {root / LAYERS / f"{build.target.replace('/', '-')}.json": build.layers for build in builds}
    for path, content in ((root / METRICS, metrics), (root / MEASURED, measured), *layers.items()):
        write_atomically(path, json.dumps(content, indent=1, sort_keys=True).encode() + b"\n")
    for path in (root / LAYERS).iterdir():
        if path not in layers:
            path.unlink()


def _scores(build: Build) -> dict[str, Any]:
    named = {name: build.metrics.get(name) for name in SCORES} | {"sqnr_db": build.sqnr_db}
    several = {tag: own[COMPILED] for tag, own in build.metrics.get(VARIANTS, {}).items()}
    return {name: value for name, value in named.items() if value is not None} | (
        {VARIANTS: several} if several else {}
    )


def _measured(build: Build, before: Any) -> dict[str, Any]:
    """Return what was measured of a build, and where; as it was ``before`` where that was of the same build."""
    key = next(stage["action_key"] for stage in build.stages if stage["stage"] == giving("metrics").name)
    if isinstance(before, Mapping) and before.get("action_key") == key and isinstance(before.get("metrics"), Mapping):
        return dict(before)
    found = {part: {name: build.metrics[name] for name in part if name in build.metrics} for part in (TIMED, PLACE)}
    return {"action_key": key, "metrics": found[TIMED], **found[PLACE]}


def _read(path: Path) -> Mapping[str, Any]:
    """Return what is there; nothing where it is no JSON object, such as one with the marks of a merge in it."""
    try:
        with open_stream(path) as stream:
            content = json.loads(stream.read())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, Mapping) else {}
