"""What a build costs: cold, fully cached, and the command line by itself, in CPU seconds of the whole process tree.

    python -m benchmarks.build -o build.json
    python -m benchmarks.build -o build.json --models resnet50.onnx dfine.onnx

With models, what compiling them for this machine costs, unverified, in a process of its own: with all kernels to be
made, and with all of them kept by a build before. Each figure is user plus system time as the operating system
accounts for it, with minimum and median over the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.accuracy import folded
from benchmarks.latency_int8 import OPTIONS
from forge_pipeline.codegen.compile_process import Job, compile_in_subprocess
from forge_pipeline.target import Target

ROOT = Path(__file__).resolve().parent.parent


def measure(arguments: list[str], store: Path, runs: int) -> dict[str, float]:
    """Run the command line ``runs`` times; return CPU and wall seconds."""
    cpu, wall = [], []
    for _ in range(runs):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "forge_pipeline", *arguments],
            cwd=ROOT,
            env={**os.environ, "FORGE_STORE": str(store)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall.append(time.perf_counter() - start)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return _figures(cpu, wall)


def compiling(path: Path, runs: int) -> tuple[dict[str, float], dict[str, float]]:
    """Compile a folded model ``runs`` times with no kernel kept, and with all, in turns."""
    shelf: dict[str, bytes] = {}
    figures: tuple[tuple[list[float], list[float]], ...] = (([], []), ([], []))
    model = folded(path).light
    job = Job(model=model, target=Target.from_tag("host"), options=OPTIONS, checks=None, relax_text=False)
    for _ in range(runs):
        shelf.clear()
        for cpu, wall in figures:
            before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            compile_in_subprocess(job, Shelf(shelf))
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            wall.append(time.perf_counter() - start)
            cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return _figures(*figures[0]), _figures(*figures[1])


@dataclass(frozen=True, slots=True)
class Shelf:
    """Kernels in memory."""

    kernels: dict[str, bytes]

    def take(self, digests: Sequence[str]) -> Mapping[str, bytes]:
        """Return those that are there."""
        return {digest: self.kernels[digest] for digest in digests if digest in self.kernels}

    def keep(self, made: Mapping[str, bytes]) -> None:
        """Put kernels there."""
        self.kernels.update(made)


def _figures(cpu: list[float], wall: list[float]) -> dict[str, float]:
    return {
        "runs": len(cpu),
        "cpu_min_s": min(cpu),
        "cpu_median_s": statistics.median(cpu),
        "wall_min_s": min(wall),
        "wall_median_s": statistics.median(wall),
    }


def main() -> None:
    """Print the table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("build.json"))
    parser.add_argument("--runs", type=int, default=7, help="runs of everything but the cold build")
    parser.add_argument("--models", type=Path, nargs="+", default=[], metavar="FILE")
    chosen = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    for path in chosen.models:
        made, kept = compiling(path, chosen.runs)
        results |= {path.stem: made, f"{path.stem}, kernels kept": kept}
    if not results:
        results = _builds(chosen.runs)
    print(f"{'':<30}{'CPU min':>10}{'median':>10}{'wall min':>10}{'median':>10}")
    for name, row in results.items():
        figures = "".join(f"{row[key]:>9.2f}s" for key in ("cpu_min_s", "cpu_median_s", "wall_min_s", "wall_median_s"))
        print(f"{name:<30}{figures}")
    chosen.output.write_text(json.dumps(results, indent=2) + "\n")


def _builds(runs: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        store, out = Path(folder) / "store", Path(folder) / "out"
        run = ["run", "experiment=digits", "target=x86-64/v3", "encrypt=none", f"out={out}"]
        return {
            "cold build": measure(run, store, 1),
            "fully cached": measure(run, store, runs),
            "--help": measure(["--help"], store, runs),
        }


if __name__ == "__main__":
    main()
