"""What a build costs: cold, fully cached, and the command line by itself, in CPU seconds of the whole process tree.

    python -m benchmarks.build -o build.json

Each figure is user plus system time as the operating system accounts for it, with minimum and median over the runs.
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
from pathlib import Path

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
    return {
        "runs": runs,
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
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store, out = Path(folder) / "store", Path(folder) / "out"
        run = ["run", "experiment=digits", "target=x86-64/v3", "encrypt=none", f"out={out}"]
        results = {
            "cold build": measure(run, store, 1),
            "fully cached": measure(run, store, chosen.runs),
            "--help": measure(["--help"], store, chosen.runs),
        }
    print(f"{'':<14}{'CPU min':>10}{'median':>10}{'wall min':>10}{'median':>10}")
    for name, row in results.items():
        figures = "".join(f"{row[key]:>9.2f}s" for key in ("cpu_min_s", "cpu_median_s", "wall_min_s", "wall_median_s"))
        print(f"{name:<14}{figures}")
    chosen.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
