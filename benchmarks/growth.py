"""How latency grows with one open size of a model: a batch, a sequence, an image's side; one library for all of them.

ONNX Runtime and OpenVINO get the size fixed, each time anew. A row is one size: least milliseconds, and how many times
the row before's, beside how many times the size. Runtimes take turns (`benchmarks.turns`). The chart has both scales
logarithmic: what grows as the size does is a straight line of slope one.

    python -m benchmarks.growth minilm.onnx tokens=16,32,64,128,256,512 batch=1 --json growth.json --svg growth.svg
    python -m benchmarks.growth detector.onnx height=96,192,384,768 width=height --threads 2
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx

from benchmarks.latency import at_its_best, folded, inputs_for
from benchmarks.turns import RUNTIMES, Contestant, compare


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size: the least milliseconds of each runtime, and why one could not run."""

    size: int
    least: dict[str, float]
    failed: dict[str, str]


def measure(
    source: Path, extents: Mapping[str, str], sizes: Sequence[int], *, threads: int, runs: int, runtimes: Sequence[str]
) -> list[Row]:
    """Return a row for each size; ``extents`` are open sizes by name: a number, or `*` for the one that grows."""
    from forge_pipeline.codegen.build import build
    from forge_pipeline.codegen.options import Options
    from forge_pipeline.target import Target

    model = folded(source)
    theirs = onnx.load(source) if source.suffix == ".onnx" else model.mod
    options = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        library, fixed = Path(place) / "model_library.so", Path(place) / "fixed.onnx"
        library.write_bytes(build(model.mod, Target.from_tag("host"), options).to_bytes())
        files = dict.fromkeys(runtimes, fixed) | {"ours": library}
        for size in sizes:
            inputs = inputs_for(
                model.mod, {name: size if value == "*" else int(value) for name, value in extents.items()}
            )
            onnx.save(at_its_best(theirs, inputs), fixed)
            contestants = {name: Contestant(runtime=name, model=file) for name, file in files.items()}
            found = compare(contestants, inputs, threads=threads, runs=runs)
            rows.append(Row(size=size, least=found.least(), failed=found.failed))
            print(table(rows, runtimes).splitlines()[-1], flush=True)
    return rows


def table(rows: Sequence[Row], runtimes: Sequence[str]) -> str:
    """Return the rows as text."""
    heads = ["size", *(f"{name} ms" for name in runtimes), "times the size", *(f"times {name}" for name in runtimes)]
    heads += [f"ours / {name}" for name in runtimes if name != "ours"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---:|" * len(heads)]
    for before, row in zip([None, *rows], rows, strict=False):
        cells = [str(row.size), *(f"{row.least[name]:.3f}" if name in row.least else "-" for name in runtimes)]
        cells += ["" if before is None else f"{row.size / before.size:.1f}"]
        for name in runtimes:
            is_there = before is not None and name in row.least and name in before.least
            cells.append(f"{row.least[name] / before.least[name]:.2f}" if is_there and before is not None else "")
        for name in runtimes:
            if name != "ours":
                is_there = {"ours", name} <= row.least.keys()
                cells.append(f"{row.least['ours'] / row.least[name]:.2f}" if is_there else "-")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(rows: Sequence[Row], runtimes: Sequence[str], name: str, path: Path) -> None:
    """Write the chart."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for runtime in runtimes:
        found = [(row.size, row.least[runtime]) for row in rows if runtime in row.least]
        axes.loglog([size for size, _ in found], [least for _, least in found], marker="o", label=runtime)
    axes.set_xticks([row.size for row in rows], [str(row.size) for row in rows], minor=False)
    axes.set_xlabel(name)
    axes.set_ylabel("milliseconds")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def main(arguments: Sequence[str]) -> int:
    """Measure, print the table, and write it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "extents", nargs="+", metavar="EXTENT=SIZE[,SIZE]...", help="one has several, others may name it"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=["onnxruntime", "openvino"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path, help="a chart")
    chosen = parser.parse_args(arguments)
    given = dict(item.split("=", 1) for item in chosen.extents)
    grown = [name for name, value in given.items() if "," in value]
    if len(grown) != 1:
        parser.error(f"one extent has several sizes, found {len(grown)}")
    sizes = [int(size) for size in given[grown[0]].split(",")]
    extents = {name: "*" if value in (grown[0], given[grown[0]]) else value for name, value in given.items()}
    runtimes = [name for name in RUNTIMES if name in {"ours", *chosen.runtimes}]
    rows = measure(chosen.model, extents, sizes, threads=chosen.threads, runs=chosen.runs, runtimes=runtimes)
    print(table(rows, runtimes))
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if chosen.svg:
        draw(rows, runtimes, grown[0], chosen.svg)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
