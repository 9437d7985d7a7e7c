"""ONNX Runtime's C interface against forge-run, one thread each, no Python in either: latency, and our memory.

Both take turns; times are the least and the median of all turns. `onnxruntime_c.c`, beside this, is compiled with `cc`,
and calls the library of the installed wheel, or of ``--library``.

    python -m benchmarks.onnxruntime_c
    python -m benchmarks.onnxruntime_c --models kws resnet50
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx

from benchmarks.latency import FOLDER, prepare
from benchmarks.models import MODELS

HERE = Path(__file__).resolve().parent
NAMES = ("kws", "resnet8", "dtln_1", "silero_vad_static_16k", "ad01", "mnist-8")
"""Files of that folder; others are made by `benchmarks.models`."""


def library() -> Path:
    """Return the shared library in the wheel of ONNX Runtime."""
    import onnxruntime

    (found,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    return found


def said(command: Sequence[object], pattern: str) -> list[float]:
    """Run a command; return the numbers of ``pattern`` in what it prints."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    found = re.search(pattern, done.stdout)
    assert found, done.stdout
    return [float(number) for number in found.groups()]


def compare(name: str, source: Path, program: Path, theirs: Path, turns: int, runs: int) -> tuple[str, float]:
    """Return a row of the table, and the ratio of the least times."""
    forge_run = HERE.parent / "runtime" / "out" / os.uname().machine / "forge-run"
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(source, Path(folder), "host", ["onnxruntime"], {})
        if "ours" not in prepared.files:
            return f"| {name} | {prepared.failed} |", float("nan")
        best = prepared.files["onnxruntime"]
        outputs = [output.name for output in onnx.load(best).graph.output]
        inputs = [f"{port}:{','.join(map(str, array.shape))}" for port, array in prepared.inputs.items()]
        ours = [forge_run, prepared.files["ours"], "--threads", 1, "--runs", runs]
        commands = {
            "ours": (ours, r"least ([\d.]+) ms, p50 ([\d.]+)"),
            "theirs": ([program, theirs, best, runs, *inputs, "--", *outputs], r"least ([\d.]+) median ([\d.]+)"),
        }
        times: dict[str, list[list[float]]] = {who: [] for who in commands}
        for _ in range(turns):
            for who, (command, pattern) in commands.items():
                times[who].append(said(command, pattern))
        least = {who: min(turn[0] for turn in found) for who, found in times.items()}
        median = {who: statistics.median(turn[1] for turn in found) for who, found in times.items()}
        peak = said([*ours, "--memory"], r"peak of the process (\d+) KiB")[0] / 1024
    cells = [f"{least[who]:.4f}, {median[who]:.4f}" for who in commands]
    ratio = least["ours"] / least["theirs"]
    return (
        f"| {name} | {' | '.join(cells)} | {ratio:.2f} | {median['ours'] / median['theirs']:.2f} | {peak:.1f} |",
        ratio,
    )


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    files = {path.stem: path for path in FOLDER.rglob("*.onnx")}
    parser.add_argument("--models", nargs="+", default=NAMES, choices=sorted({*files, *MODELS}), metavar="MODEL")
    parser.add_argument("--library", type=Path, help="libonnxruntime.so, of the wheel by default")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--runs", type=int, default=500)
    given = parser.parse_args(arguments)
    print("| model | forge-run ms (least, median) | ONNX Runtime | ratio of least | of medians | peak MiB |")
    print("|" + "---|" * 6)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "onnxruntime_c"
        subprocess.run(["cc", "-O2", "-std=gnu11", HERE / "onnxruntime_c.c", "-o", program, "-ldl"], check=True)
        ratios = []
        for name in given.models:
            source = files.get(name) or Path(folder) / "model.onnx"
            if name not in files:
                onnx.save(MODELS[name](), source)
            row, ratio = compare(name, source, program, given.library or library(), given.turns, given.runs)
            ratios.append(ratio)
            print(row, flush=True)
    print(f"geometric mean of the least: {statistics.geometric_mean(ratios):.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
