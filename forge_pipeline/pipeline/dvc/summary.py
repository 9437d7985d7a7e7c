"""What `dvc repro` built: the page out/report.html, the numbers in results/, and a few lines on the terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge_pipeline.content import open_stream
from forge_pipeline.digest import digest_file
from forge_pipeline.errors import ArtifactError
from forge_pipeline.pipeline.deliver import write_atomically
from forge_pipeline.pipeline.dvc.history import earlier
from forge_pipeline.pipeline.dvc.receipts import PAGE, receipt_path, record_of, write_page_receipt
from forge_pipeline.pipeline.dvc.results import write_results
from forge_pipeline.pipeline.dvc.work_tree import OUT, folder_of
from forge_pipeline.pipeline.provenance import commit
from forge_pipeline.report.build import About, Build
from forge_pipeline.report.figures import size
from forge_pipeline.report.page import render
from forge_pipeline.stages import STAGES, taking
from forge_pipeline.stages.artifacts import METADATA, MODEL_FILES, REPORT
from forge_pipeline.store import Store
from forge_runtime.text import shown


def write_report(targets: Sequence[str], model_file: Path, store: Store) -> None:
    """Write the page about the builds of ``model_file`` below `out/` and in the store, and `results/`.

    Print a summary. Raises ArtifactError where a build is missing.
    """
    builds = [read_build(target) for target in targets]
    write_results(builds)
    about = About(
        model=model_file.name,
        commit=commit() or "",
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        earlier=earlier(store, model_file.name, targets),
    )
    write_atomically(PAGE, render(builds, about).encode())
    write_page_receipt(targets)
    print(summary(builds), flush=True)


def read_build(target: str) -> Build:
    """Read one target's build from the work tree."""
    folder = OUT / target
    records = [record_of(receipt_path(stage, target)) for stage in STAGES]
    metadata = _json(folder / METADATA)
    library = next(path for path in (folder / name for name in MODEL_FILES.values()) if path.exists())
    return Build(
        target=target,
        metrics=_json(folder / "metrics.json") | _json(folder / "latency.json"),
        layers=_json(folder / "layers.json"),
        metadata=metadata,
        stages=[_json(record) for record in records if record.exists()],  # a stage may be left out
        artifact=digest_file(library),
        artifact_name=library.name,
        artifact_bytes=library.stat().st_size,
        encrypted=(folder / "modelKey.bin").exists(),
        names=_json(folder_of(taking("source").name, None) / REPORT)["names"],
    )


def summary(builds: Sequence[Build]) -> str:
    """Return a table with a line per target, and where the page is."""
    rows: list[tuple[str, ...]] = [("target", "size", "float", "quantized", "compiled", "ran in", "latency", "library")]
    for build in (row for each in builds for row in each.rows):
        metrics = build.metrics
        rows.append(
            (
                build.target,
                size(build.artifact_bytes),
                *(_score(metrics.get(name)) for name in ("float", "quantized", "compiled")),
                metrics.get("ran_in") or "-",
                f"{metrics['latency_median_ms']:.3g} ms" if "latency_median_ms" in metrics else "-",
                str(OUT / build.target.partition(": ")[0] / build.artifact_name),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(map(shown, [*lines, f"report: {PAGE}"]))


def _score(value: Any) -> str:
    return "-" if value is None else f"{value:.6g}"


def _json(path: Path) -> Any:
    try:
        with open_stream(path) as stream:
            return json.loads(stream.read())
    except OSError as error:
        found = "no such file" if isinstance(error, FileNotFoundError) else str(error.strerror)
        raise ArtifactError(str(path), "a file of a finished build", found, "run `dvc repro`") from error
