"""Operators by themselves (`benchmarks.operator_cases`), of open sizes and of known ones, against other runtimes.

Runtimes take turns (`benchmarks.turns`); a call from Python and half a MB of results are in both times. With
``--kernels``, it is the kernels' own time on one thread: what `Engine.profile` has, and the nodes in ONNX Runtime's
profile, which counts whole microseconds. Each is then the mean of the quickest fifth of its runs.

    python -m benchmarks.operators --json operators.json
    python -m benchmarks.operators --only pool --threads 2
    python -m benchmarks.operators --kernels --only "softmax"
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from benchmarks.operator_cases import CASES, Case
from benchmarks.turns import RUNTIMES, Contestant, compare

TURNS, TURN = 8, 0.02
"""Turns of each runtime, and their seconds, where kernels are timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One operator: least and median microseconds of each runtime."""

    name: str
    is_open: bool
    least: dict[str, float]
    median: dict[str, float]

    def cells(self, runtimes: Sequence[str]) -> list[str]:
        """Return the row as text: least (median) of each, and how many times theirs ours is."""
        times = [
            f"{self.least[name]:.0f} ({self.median[name]:.0f})" if name in self.least else "-" for name in runtimes
        ]
        ratios = [
            f"{self.least['ours'] / self.least[name]:.2f}" if name in self.least else "-"
            for name in runtimes
            if name != "ours"
        ]
        return [self.name, "open" if self.is_open else "known", *times, *ratios]


def prepare(case: Case, folder: Path, *, is_open: bool) -> tuple[Path, Path]:
    """Compile the model of a case, and write it; return the library, and the model."""
    from forge_pipeline.codegen.build import build
    from forge_pipeline.codegen.options import Options
    from forge_pipeline.target import Target

    model = case.model(is_open=is_open)
    options = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
    library, source = folder / "model_library.so", folder / "model.onnx"
    library.write_bytes(build(model, Target.from_tag("host"), options).to_bytes())
    onnx.save(model, source)
    return library, source


def measure(name: str, *, is_open: bool, threads: int, runs: int, runtimes: Sequence[str]) -> Row:
    """Return the times of calls of one of CASES."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as place:
        library, source = prepare(case, Path(place), is_open=is_open)
        contestants = {
            runtime: Contestant(runtime=runtime, model=library if runtime == "ours" else source) for runtime in runtimes
        }
        found = compare(contestants, case.inputs(), threads=threads, runs=runs)
    least = {name: 1e3 * value for name, value in found.least().items()}
    median = {name: 1e3 * value for name, value in found.median().items()}
    return Row(name=name, is_open=is_open, least=least, median=median)


def measure_kernels(name: str, *, is_open: bool) -> Row:
    """Return the times of the kernels of one of CASES, ours and ONNX Runtime's."""
    import onnxruntime

    from forge_runtime.engine import Engine

    case = CASES[name]
    inputs = case.inputs()
    with tempfile.TemporaryDirectory() as place:
        library, source = prepare(case, Path(place), is_open=is_open)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        options.enable_profiling, options.profile_file_prefix = True, str(Path(place) / "profile")
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        engine, ours = Engine(library, threads=1), []
        given = [inputs[tensor.name] for tensor in engine.inputs]
        for _ in range(TURNS):
            end = time.perf_counter() + TURN
            while time.perf_counter() < end:
                ours.append(1e3 * sum(kernel.milliseconds for kernel in engine.profile(*given, runs=1)))
            end = time.perf_counter() + TURN
            while time.perf_counter() < end:
                session.run(None, inputs)
        nodes: dict[str, list[float]] = defaultdict(list)
        for event in json.loads(Path(session.end_profiling()).read_text()):
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                nodes[event["name"]].append(event["dur"] + 0.5)  # microseconds, rounded down
    theirs = {"least": sum(map(_low, nodes.values())), "median": sum(sorted(n)[len(n) // 2] for n in nodes.values())}
    return Row(
        name=name, is_open=is_open, least={"ours": _low(ours), "onnxruntime": theirs["least"]},
        median={"ours": sorted(ours)[len(ours) // 2], "onnxruntime": theirs["median"]},
    )  # fmt: skip


def _low(times: Sequence[float]) -> float:
    """Return the mean of the lowest fifth."""
    lowest = sorted(times)[: max(1, len(times) // 5)]
    return sum(lowest) / len(lowest)


def main(arguments: Sequence[str]) -> int:
    """Measure, print the table as it grows, and write it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="operators whose name has this in it")
    parser.add_argument("--kernels", action="store_true", help="the time of kernels, of ours and of onnxruntime")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=["ours", "onnxruntime"])
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    if chosen.kernels:
        chosen.runtimes = ["onnxruntime"]
    runtimes = [name for name in RUNTIMES if name in {"ours", *chosen.runtimes}]
    heads = ["operator", "sizes", *(f"{name} us" for name in runtimes)]
    heads += [f"ours / {name}" for name in runtimes if name != "ours"]
    print("| " + " | ".join(heads) + " |\n|---|---|" + "---:|" * (len(heads) - 2))
    rows = []
    for name, case in CASES.items():
        for is_open in (True, False) if case.can_be_open else (False,):
            if chosen.only in name:
                more: dict[str, Any] = {"threads": chosen.threads, "runs": chosen.runs, "runtimes": runtimes}
                known = measure_kernels(name, is_open=is_open) if chosen.kernels else None
                rows.append(known or measure(name, is_open=is_open, **more))
                print("| " + " | ".join(rows[-1].cells(runtimes)) + " |", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
