"""The jobs of a sweep -> one HTML page, a table for a terminal, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict

from forge_pipeline.report.figures import ABSENT, milliseconds, score, size
from forge_pipeline.report.page import environment
from forge_pipeline.report.scatter import scatter
from forge_pipeline.report.sweep import Failure, Job, Row, by_target, varying
from forge_runtime.text import shown

TEMPLATE = "sweep.html.j2"
FIGURES = ("metric", "score", "drop", "latency_ms", "library_bytes", "peak_kib", "built", "hits", "seconds", "digest")


def page(name: str, jobs: Sequence[Job], failures: Sequence[Failure]) -> str:
    """Return the page; the same jobs give the same text. Raises ConfigError where jinja2 is not installed."""
    groups = [(target, rows, scatter(rows)) for target, rows in by_target(jobs).items()]
    return environment().get_template(TEMPLATE).render(name=name, groups=groups, jobs=jobs, failures=failures)


def table(jobs: Sequence[Job], failures: Sequence[Failure]) -> str:
    """Return a table for each target, its best jobs marked with a star, and a line for each failure."""
    blocks = [_block(target, rows) for target, rows in by_target(jobs).items()]
    if failures:
        blocks.append("\n".join(["failed:", *(f"  {shown(each.job)}: {shown(each.reason)}" for each in failures)]))
    blocks.append(f"{len(jobs)} delivered, {len(failures)} failed; * none is better in accuracy, latency and size")
    return "\n\n".join(blocks)


def _block(target: str, rows: Sequence[Row]) -> str:
    lines = [("", "score", "lost", "latency", "library", "peak", "differs in")]
    for row in rows:
        job = row.job
        lines.append(
            (
                "*" if row.front else "",
                score(job.score, job.metric),
                ABSENT if job.drop is None else f"{job.drop:g}",
                milliseconds(job.latency_ms),
                size(job.library_bytes),
                size(None if job.peak_kib is None else job.peak_kib * 1024),
                shown(" ".join(f"{key}={value}" for key, value in row.options.items()) or job.name, 300),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    cells = (
        [cell.ljust(width) if at in (0, 6) else cell.rjust(width) for at, (cell, width) in enumerate(pairs)]
        for pairs in (list(zip(line, widths, strict=True)) for line in lines)
    )
    return "\n".join([shown(target), *(f"  {'  '.join(each)}".rstrip() for each in cells)])


def as_json(jobs: Sequence[Job], failures: Sequence[Failure]) -> str:
    """Return all that is known: `jobs`, in the order of the page and with `front`, and `failures`."""
    rows = [row for rows in by_target(jobs).values() for row in rows]
    told = [asdict(row.job) | {"front": row.front, "differs": dict(row.options)} for row in rows]
    return json.dumps({"format": 1, "jobs": told, "failures": [asdict(each) for each in failures]}, indent=1)


def as_csv(jobs: Sequence[Job], failures: Sequence[Failure]) -> str:
    """Return a line for each job, with a column for each option that varies, and for each failure."""
    options = varying(jobs)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["job", "target", "front", *FIGURES, *options, "failed"])
    for rows in by_target(jobs).values():
        for row in rows:
            figures = [getattr(row.job, name) for name in FIGURES]
            chosen = [row.job.options.get(key, "") for key in options]
            writer.writerow(map(_cell, [row.job.name, row.job.target, int(row.front), *figures, *chosen, ""]))
    for each in failures:
        writer.writerow(map(_cell, [each.job, *[""] * (2 + len(FIGURES) + len(options)), each.reason]))
    return text.getvalue().rstrip("\n")


def _cell(value: object) -> object:
    """Return what a spreadsheet takes for a text, and not for a formula."""
    if isinstance(value, str):
        plain = shown(value, 1000)
        return f"'{plain}" if plain[:1] in ("=", "+", "@", "-") else plain
    return value
