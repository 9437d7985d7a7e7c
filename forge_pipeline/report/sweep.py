"""The jobs of a sweep beside each other: which are best, what each differs in, and which failed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OBJECTIVES: tuple[Callable[[Job], float | None], ...] = (
    lambda job: job.drop,
    lambda job: job.latency_ms,
    lambda job: job.library_bytes,
)
"""What is the better the less it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A delivery. ``name`` is its folder below the sweep's, ``options`` have dotted names and texts.

    ``score`` is the compiled model's, or the quantized one's where that was not run; ``drop`` is what is lost of the
    float model's. ``latency_ms`` is the median, None where it was not measured: ``not_timed`` says why. ``built``
    counts the stages that were built for it, ``hits`` those that were in the store. ``digest`` is the SHA-256 of the
    library as it was compiled, before it was sealed.
    """

    name: str
    target: str
    options: Mapping[str, str]
    metric: str
    score: float | None
    drop: float | None
    latency_ms: float | None
    library_bytes: int
    peak_kib: int | None
    not_timed: str
    built: int
    hits: int
    seconds: float
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A job that failed: what was said of it, and what is to be done."""

    job: str
    reason: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A job among those of its target. ``options`` are those in which any two of these differ.

    ``changed`` names the options that differ from the row above; ``front`` says that no other job is better in
    accuracy, latency or size, and as good in the rest. ``same_as`` is the number of an earlier row whose options gave
    the same library, None where there is none.
    """

    number: int
    job: Job
    front: bool
    same_as: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    changed: frozenset[str] = frozenset()


def by_target(jobs: Sequence[Job]) -> dict[str, list[Row]]:
    """Return the rows of each target, the quickest first, or the smallest where not all were timed."""
    found: dict[str, list[Row]] = {}
    number = 0
    for target in sorted({job.target for job in jobs}):
        own = [job for job in jobs if job.target == target]
        timed = all(job.latency_ms is not None for job in own)
        own.sort(key=lambda job: (job.latency_ms or 0.0 if timed else 0.0, job.library_bytes, job.name))
        best, varied = front(own), varying(own)
        rows: list[Row] = []
        first: dict[str, int] = {}
        for job in own:
            number += 1
            options = {key: job.options.get(key, "") for key in varied}
            above = rows[-1].options if rows else options
            changed = frozenset(key for key in varied if options[key] != above[key])
            same_as = first.get(job.digest)
            first.setdefault(job.digest, number)
            is_best = job in best and same_as is None
            rows.append(Row(number=number, job=job, front=is_best, same_as=same_as, options=options, changed=changed))
        found[target] = rows
    return found


def front(jobs: Sequence[Job]) -> list[Job]:
    """Return the Pareto front, by what is known of all jobs."""
    known = [objective for objective in OBJECTIVES if all(objective(job) is not None for job in jobs)]
    places = {id(job): tuple(objective(job) for objective in known) for job in jobs}
    return [job for job in jobs if known and not any(_better(places[id(it)], places[id(job)]) for it in jobs)]


def _better(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return one != other and all(mine <= its for mine, its in zip(one, other, strict=True))


def varying(jobs: Sequence[Job]) -> list[str]:
    """Return the names of the options that are not the same in all jobs."""
    names = sorted({name for job in jobs for name in job.options})
    return [name for name in names if len({job.options.get(name) for job in jobs}) > 1]


def flat(options: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Return nested options as dotted names and texts, without those of the target."""
    found: dict[str, str] = {}
    for name, value in options.items():
        if name == "target" or (before and name == "machine") or (name == "data" and value is None):
            continue
        whole = name if name == "data" else f"{before}{name}"  # each stage that reads samples repeats where they are
        found |= flat(value, f"{whole}.") if isinstance(value, Mapping) and value else {whole: _text(value)}
    return found


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
