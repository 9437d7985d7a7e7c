"""Builds in the trackers that teams have, MLflow and DVCLive: the options of each, and how good what it delivers is.

A tracker is told after the delivery. What fails there costs a line, and the build only where it is `required`; the
jobs of a process do not wait for one that has failed them before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from forge_pipeline.config import bind
from forge_pipeline.errors import ConfigError, ForgeError
from forge_pipeline.pipeline.console import warn
from forge_pipeline.pipeline.sweep.results import delivered
from forge_pipeline.report.sweep import Job
from forge_pipeline.store.locks import locked
from forge_runtime.redact import redacted
from forge_runtime.text import shown

ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # seconds
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "1",
    "DVCLIVE_LOGLEVEL": "ERROR",  # DVC lists every file that it does not take
}
"""What trackers are told, unless the user has told them: not to wait for long, nor to phone home."""

BATCH = 100
"""Parameters that MLflow takes at once."""

LOCK = Path(".forge") / "tracking.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """conf/track: `uri` and `experiment` are MLflow's, `folder` is DVCLive's."""

    kind: Literal["none", "mlflow", "dvclive"]
    required: bool = False
    uri: str | None = None
    experiment: str = "forge-pipeline"
    folder: str = "dvclive"


_away: set[str] = set()
"""The trackers that have failed in this process."""


def tracker(section: Any) -> Callable[[Path, str], None]:
    """Return what notes the delivery in a folder, under a name. Raises ConfigError where the extra is not installed."""
    if section is None:
        return _nothing
    options = bind(Options, section, where="track")
    if options.kind == "none":
        return _nothing
    if find_spec(options.kind) is None:
        raise ConfigError(
            f"track={options.kind}", f"the package {options.kind}", "no such module",
            f"pip install 'forge-pipeline[{options.kind}]', or choose track=none",
        )  # fmt: skip

    def note(out: Path, name: str) -> None:
        if options.kind in _away and not options.required:
            return
        for variable, value in ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
        try:
            place = TRACKERS[options.kind](options, delivered(out, name))
        except Exception as error:  # whatever a tracker raises, the delivery is made
            _away.add(options.kind)
            found = shown(redacted(" ".join(str(error).split())), 300) or type(error).__name__
            if options.required:
                fix = "see that it answers; the delivery is made, and another run is all hits"
                raise ForgeError(f"track={options.kind}", "a tracker that takes the build", found, fix) from error
            warn(f"not tracked by {options.kind}: {found}")
        else:
            print(f"tracked    {shown(place)}", flush=True)

    return note


def _nothing(out: Path, name: str) -> None:
    """Note nothing."""


def metrics_of(job: Job) -> dict[str, float]:
    """Return what is known of a delivery, by name: the score under its metric's, bytes, milliseconds, KiB, seconds."""
    known = {
        job.metric: job.score,
        f"{job.metric}_lost": job.drop,
        "latency_ms": job.latency_ms,
        "library_bytes": job.library_bytes,
        "peak_kib": job.peak_kib,
        "build_seconds": job.seconds,
    }
    return {name: float(value) for name, value in known.items() if value is not None}


def _parameters(job: Job) -> dict[str, str]:
    """Return the options by name, without what is secret in a URL."""
    return {name: redacted(value) for name, value in job.options.items()}


def _mlflow(options: Options, job: Job) -> str:
    import logging

    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    client = MlflowClient(tracking_uri=options.uri)
    experiment = client.get_experiment_by_name(options.experiment)
    number = client.create_experiment(options.experiment) if experiment is None else experiment.experiment_id
    tags = {"target": job.target, "library_sha256": job.digest}
    run = client.create_run(number, run_name=job.name, tags=tags)
    status = "FAILED"
    try:
        parameters = [Param(name, value) for name, value in sorted(_parameters(job).items())]
        for first in range(0, len(parameters), BATCH):
            client.log_batch(run.info.run_id, params=parameters[first : first + BATCH])
        when = run.info.start_time
        client.log_batch(run.info.run_id, [Metric(name, value, when, 0) for name, value in metrics_of(job).items()])
        status = "FINISHED"
    finally:
        client.set_terminated(run.info.run_id, status)
    return f"mlflow, experiment {options.experiment}, run {run.info.run_id}"


def _dvclive(options: Options, job: Job) -> str:
    from dvclive.live import Live

    folder = Path(options.folder)
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with locked(LOCK):  # DVC admits one process to a repository
        live = Live(dir=str(folder), dvcyaml=str(folder / "dvc.yaml"), exp_message=job.name)
        with live:
            live.log_params({"target": job.target, **_parameters(job), "library_sha256": job.digest})
            for metric, value in metrics_of(job).items():
                live.log_metric(metric, value, plot=False)
        if vars(live)["_experiment_rev"] is None:  # DVCLive says it in a log only
            found = "a folder that DVC saves no experiment of"
            fix = "git init, dvc init and a first commit"
            raise ForgeError(f"track.folder={folder}", "a git repository with DVC and a commit", found, fix)
        name = vars(live)["_exp_name"]  # DVC chose it
    return f"dvclive, experiment {name}"


TRACKERS: Mapping[str, Callable[[Options, Job], str]] = {"mlflow": _mlflow, "dvclive": _dvclive}
