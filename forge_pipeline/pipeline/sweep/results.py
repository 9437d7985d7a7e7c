"""What a sweep leaves in its folder: `sweep.json` and `sweep.html`, made from its deliveries and its failures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from forge_pipeline.config import bind
from forge_pipeline.content import open_stream
from forge_pipeline.errors import ArtifactError, ForgeError
from forge_pipeline.evaluation.scores import METRICS as METRIC_TABLE
from forge_pipeline.pipeline.console import warn
from forge_pipeline.pipeline.deliver import MANIFEST, write_atomically
from forge_pipeline.pipeline.provenance import PROVENANCE
from forge_pipeline.report.sweep import Failure, Job, flat
from forge_pipeline.report.sweep_page import as_csv, as_json, page, table
from forge_pipeline.stages.artifacts import MODEL_FILES
from forge_runtime.text import shown

RESULTS, PAGE = "sweep.json", "sweep.html"
METRICS, LATENCY, KEY = "metrics.json", "latency.json", "modelKey.bin"
MOST = 2000
"""Characters of what is said of a failure; `shown` leaves out what is secret in URLs."""

FORMATS: dict[str, Callable[[str, Sequence[Job], Sequence[Failure]], str]] = {
    "table": lambda name, jobs, failures: table(jobs, failures),
    "csv": lambda name, jobs, failures: as_csv(jobs, failures),
    "json": lambda name, jobs, failures: as_json(jobs, failures),
    "html": page,
}


def show(folder: Path, form: str) -> str:
    """Return what is below ``folder`` in one of FORMATS: each delivery, and what failed in the last sweep.

    Raises ArtifactError where there is neither.
    """
    jobs, failures = read_jobs(folder), read_failures(folder)
    if not jobs and not failures:
        raise ArtifactError(
            str(folder), "a folder with deliveries below it", "none",
            "name the folder of a sweep, as `forge-pipeline run -m` delivers into",
        )  # fmt: skip
    return FORMATS[form](_name(folder), jobs, failures)


def write(config: Mapping[str, Any], errors: Iterable[BaseException]) -> None:
    """Write both files into the folder of a sweep with this configuration, in which these ``errors`` ended jobs.

    Nothing where the sweep has left no folder.
    """
    folder = root_of(Path(str(config["out"])), str(config["target"]["tag"]))
    if folder.is_dir():
        write_into(folder, list(map(_failure, errors)))


def write_into(folder: Path, failures: Sequence[Failure]) -> None:
    """Write both files about the deliveries below ``folder`` and these ``failures``; no page without jinja2.

    Files about encrypted builds are for their owner alone.
    """
    jobs = read_jobs(folder)
    private = any((folder / job.name / KEY).exists() for job in jobs)
    write_atomically(folder / RESULTS, as_json(jobs, failures).encode() + b"\n", private=private)
    try:
        text = page(_name(folder), jobs, failures)
    except ForgeError:  # no jinja2
        return
    write_atomically(folder / PAGE, text.encode(), private=private)
    print(f"sweep      {folder / PAGE}", flush=True)


def root_of(out: Path, tag: str) -> Path:
    """Return the folder that all jobs have in common: ``out`` without the tag of a target at its end."""
    parts = Path(tag).parts
    return Path(*out.parts[: -len(parts)]) if out.parts[-len(parts) :] == parts else out


def read_jobs(folder: Path) -> list[Job]:
    """Return each whole delivery below ``folder``, and in it. One that cannot be read is left out with a warning."""
    found = []
    for path in sorted(folder.rglob(MANIFEST)):
        try:
            found.append(delivered(path.parent, path.parent.relative_to(folder).as_posix()))
        except ArtifactError as wrong:
            warn(f"left out: {wrong}")
    return found


def read_failures(folder: Path) -> list[Failure]:
    """Return what failed in the last sweep into ``folder``; nothing where none has noted it."""
    path = folder / RESULTS
    if not path.exists():
        return []
    content = _json(path)
    try:
        return [bind(Failure, each, where=str(path)) for each in content["failures"]]
    except (LookupError, TypeError) as error:
        raise _damaged(path) from error


def delivered(folder: Path, name: str) -> Job:
    """Return the delivery in ``folder``. Raises ArtifactError where it is none, or damaged."""
    try:
        return _read(folder, name)
    except (LookupError, TypeError, AttributeError, ValueError, StopIteration) as error:
        raise _damaged(folder) from error


def _read(folder: Path, name: str) -> Job:
    options = _json(folder / PROVENANCE)["predicate"]["buildDefinition"]["externalParameters"]["options"]
    stages = _json(folder / MANIFEST)["stages"]
    metrics = {key: value for file in (METRICS, LATENCY) for key, value in _optional(folder / file).items()}
    library = next(path for file in MODEL_FILES.values() if (path := folder / file).exists())
    digests = [
        stage["outputs"][library.name]
        for stage in stages
        if library.name in stage["outputs"] and "variant" not in stage
    ]
    metric = str(metrics.get("metric") or "score")
    score = metrics.get("quantized") if metrics.get("compiled") is None else metrics["compiled"]
    return Job(
        name=name,
        target=next(given["target"]["tag"] for given in options.values() if "target" in given),
        options=flat(options),
        metric=metric,
        score=score,
        drop=_lost(metric, metrics.get("float"), score),
        latency_ms=metrics.get("latency_median_ms"),
        library_bytes=metrics.get("size_library_bytes") or library.stat().st_size,
        peak_kib=metrics.get("peak_kib"),
        not_timed=str(metrics.get("not_timed") or metrics.get("not_run") or ""),
        built=sum(stage["result"] != "hit" for stage in stages),
        hits=sum(stage["result"] == "hit" for stage in stages),
        seconds=float(sum(stage["seconds"] for stage in stages)),
        digest=str(digests[0]),
    )


def _lost(metric: str, before: float | None, after: float | None) -> float | None:
    """Return how much worse the second score is; a metric of the user's own is the better the higher it is."""
    if before is None or after is None:
        return None
    is_gain = METRIC_TABLE[metric]().higher_is_better if metric in METRIC_TABLE else True
    return round(before - after if is_gain else after - before, 6)


def _failure(error: BaseException) -> Failure:
    if not isinstance(error, ForgeError):
        return Failure(job="a job", reason=f"{type(error).__name__}, a bug", fix="see what it printed")
    job, _, where = error.where.partition(": ")
    reason = f"{where}: expected {error.expected}, found {error.found}"
    return Failure(job=shown(job), reason=shown(reason, MOST), fix=shown(error.fix, MOST))


def _name(folder: Path) -> str:
    return folder.resolve().name


def _optional(path: Path) -> Mapping[str, Any]:
    return _json(path) if path.exists() else {}


def _json(path: Path) -> Any:
    try:
        with open_stream(path) as stream:
            return json.loads(stream.read())
    except OSError as error:
        raise ArtifactError(str(path), "a file of a delivery", str(error.strerror), "build it again") from error
    except ValueError as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> ArtifactError:
    return ArtifactError(str(path), "a delivery as it was written", "another content", "build it again")
