"""A sweep's jobs, as Hydra names them by their overrides, run at once on this machine and summed up in a line."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hydra.core.utils import JobReturn, JobStatus

from forge_pipeline import width
from forge_pipeline.errors import ConfigError, ForgeError
from forge_pipeline.pipeline.parallel.display import display_for
from forge_pipeline.pipeline.parallel.pool import Pool
from forge_pipeline.pipeline.parallel.worker import Job
from forge_pipeline.pipeline.withheld import quotable
from forge_pipeline.runners.choice import effort_of
from forge_pipeline.target import Target
from forge_runtime.text import shown

TARGET = "target="
"""What differs between jobs that begin alike: the stages before compile know little of a target."""


def width_of(jobs: Any, count: int) -> int:
    """Return how many of ``count`` jobs to do at once. Raises ConfigError where ``jobs`` is no number of any."""
    if jobs is not None and (not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1):
        raise ConfigError("jobs", "a whole number of at least 1, or null", repr(jobs), "give jobs=N")
    return width.width_of(jobs, count)


def run_jobs(overrides: Sequence[Sequence[str]], run: Callable[[int], Any], at_once: int) -> list[Any]:
    """Return what ``run`` gives for each number, or the exception that ended its process; print a line about all."""
    names = names_of(overrides)
    jobs = [
        Job(
            name=name,
            group=tuple(item for item in own if not item.startswith(TARGET)),
            call=partial(run, number),
            effort=max((_effort(item.removeprefix(TARGET)) for item in own if item.startswith(TARGET)), default=0),
        )
        for number, (name, own) in enumerate(zip(names, overrides, strict=True))
    ]
    begun = time.monotonic()
    with display_for(names) as display:
        results = Pool(jobs, at_once, display, failed=_has_failed).run()
    failed = sum(map(_has_failed, results))
    print(
        f"{len(jobs)} jobs in {time.monotonic() - begun:.1f} s, {at_once} at once: "
        f"{len(jobs) - failed} delivered, {failed} failed",
        flush=True,
    )
    return results


def _effort(tag: str) -> int:
    """Return the rank of a target by its tag; the least for a word that is none, which its job tells of."""
    try:
        return effort_of(Target.from_tag(tag))
    except ForgeError:
        return 0


def _has_failed(result: Any) -> bool:
    return not isinstance(result, JobReturn) or result.status == JobStatus.FAILED


def names_of(overrides: Sequence[Sequence[str]]) -> list[str]:
    """Return for each job what it has that not all have: the target's tag, and `key=value` for the rest."""
    common = set.intersection(*map(set, overrides)) if len(overrides) > 1 else set()
    own = [[item for item in each if item not in common and not item.startswith("hydra.")] for each in overrides]
    return [shown(" ".join(quotable(item).removeprefix(TARGET) for item in each)) or "job" for each in own]
