"""How long a library takes until it is ready: copied, checked, loaded, its weights prepared. The file is warm.

python -m benchmarks.load model_library.so --threads 1
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

RUNS = 11


def main() -> None:
    """Print the least and the median time, wall and CPU, of RUNS loads after a first one."""
    from forge_runtime.engine import Engine

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    Engine(chosen.library, threads=chosen.threads)  # the first loads libforge too
    walls, cpus = [], []
    for _ in range(RUNS):
        wall, cpu = time.perf_counter(), time.process_time()
        engine = Engine(chosen.library, threads=chosen.threads)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        del engine
    size = chosen.library.stat().st_size / 1e6
    for name, values in (("wall", walls), ("CPU", cpus)):
        print(f"{size:.1f} MB, {name}: least {min(values):.3f} s, median {statistics.median(values):.3f} s")


if __name__ == "__main__":
    main()
