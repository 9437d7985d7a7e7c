"""The fingerprint of a large model beside SHA-256 over the same bytes in memory: how much of that rate is left.

    python -m benchmarks.fingerprint --mib 500 --json fingerprint.json

Both take turns in one process on a warm file cache; the ratio is the fingerprint's rate / SHA-256's, pair by pair.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from forge_pipeline import ONNXModule

MIB = 1 << 20


def model(path: Path, weights: int, size: int, *, external: bool) -> None:
    """Write a chain of additions with that many weights of ``size`` bytes each, inside the file or beside it."""
    content = np.random.default_rng(0).bytes(size)
    tensors = [
        TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[size // 4], raw_data=content)
        for i in range(weights)
    ]
    nodes = [helper.make_node("Add", [f"y{i}", f"w{i}"], [f"y{i + 1}"]) for i in range(weights)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size // 4]) for name in ("y0", f"y{weights}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(made, path, save_as_external_data=external, location=f"{path.stem}.data", convert_attribute=False)


def _fingerprint(path: Path) -> str:
    return ONNXModule.from_file(path).fingerprint


def seconds(work: Callable[[], object]) -> float:
    """Return how long it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main(arguments: Sequence[str]) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=500)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for title, count, external in (
            ("10 weights", 10, False), ("weights of 1 MiB", options.mib, False), ("external data", 50, True),
        ):  # fmt: skip
            path = Path(folder) / f"{count}.onnx"
            model(path, count, options.mib * MIB // count, external=external)
            ONNXModule.from_file(path).fingerprint  # noqa: B018  brings the file into the cache
            block = bytes(MIB)

            def plain(block: bytes = block) -> None:
                digest = hashlib.sha256()
                for _ in range(options.mib):
                    digest.update(block)

            ratios, rates = [], []
            for _ in range(options.runs):
                raw = seconds(plain)
                ours = seconds(partial(_fingerprint, path))
                ratios.append(raw / ours)
                rates.append(options.mib / 1024 / raw)
            rows[title] = {"min": min(ratios), "median": statistics.median(ratios)}
            print(
                f"{title:18} {min(ratios):.2f} min {statistics.median(ratios):.2f} median of SHA-256's "
                f"{statistics.median(rates):.2f} GiB/s"
            )
    if options.json:
        options.json.write_text(json.dumps({"mib": options.mib, "rows": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
