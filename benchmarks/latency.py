"""Latency of compiled models beside ONNX Runtime and OpenVINO.

One process for each runtime, and only one of them runs at a time: ONNX Runtime's threads go on spinning after a run
and would take the core from whoever is measured next. The processes take turns, a few runs each, so that what else
the machine does falls on all of them alike. Ratios are medians over the turns of ours / theirs.

    python -m benchmarks.latency --threads 1 --threads 2 --json latency.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.models import MODELS

RUNTIMES = ("ours", "onnxruntime", "openvino")
RUNS_PER_TURN = 3
WARM_UP = 3
PAUSE = 0.02
"""Seconds between turns, for the threads of the runtime before to fall asleep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model with one number of threads: milliseconds per runtime, and ours relative to the others."""

    model: str
    threads: int
    least: dict[str, float]
    median: dict[str, float]
    ratio: dict[str, float]
    error: float


def serve(runtime: str, model: Path, library: Path, threads: int, inputs: Path, output: Path) -> int:
    """Be one runtime: load, write one result, then for every line with a number n run n times and print seconds."""
    given = dict(np.load(inputs))
    run = _RUNTIMES[runtime](model, library, threads, given)
    np.save(output, np.asarray(run()))
    for _ in range(WARM_UP):
        run()
    print("ready", flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        print(json.dumps(seconds), flush=True)
    return 0


def _ours(model: Path, library: Path, threads: int, given: dict[str, np.ndarray]) -> Callable[[], Any]:
    from forge_pipeline.runtime.engine import Engine

    engine = Engine(library.read_bytes(), threads=threads)
    return lambda: engine(**given)[0]


def _onnxruntime(model: Path, library: Path, threads: int, given: dict[str, np.ndarray]) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, given)[0]


def _openvino(model: Path, library: Path, threads: int, given: dict[str, np.ndarray]) -> Callable[[], Any]:
    import openvino

    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(model),
        "CPU",
        {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"},
    )
    request = compiled.create_infer_request()
    return lambda: request.infer(given)[compiled.outputs[0]]


_RUNTIMES = {"ours": _ours, "onnxruntime": _onnxruntime, "openvino": _openvino}


def measure(name: str, model: Path, library: Path, threads: int, runs: int, runtimes: Sequence[str]) -> Row:
    """Start the runtimes, let them take turns until each has ``runs`` runs, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **random_inputs(onnx.load(model)))
        children = {}
        try:
            for runtime in runtimes:
                children[runtime] = _start(runtime, model, library, threads, inputs, Path(folder) / f"{runtime}.npy")
            seconds: dict[str, list[float]] = {runtime: [] for runtime in runtimes}
            while len(seconds[runtimes[0]]) < runs:
                for runtime, child in children.items():
                    time.sleep(PAUSE)
                    seconds[runtime] += _ask(child, RUNS_PER_TURN + 1)[1:]  # the first brings the caches back
        finally:
            for child in children.values():
                child.kill()
                child.communicate()
        results = {runtime: np.load(Path(folder) / f"{runtime}.npy") for runtime in runtimes}
    reference = results["onnxruntime"]
    ours = np.array(seconds["ours"])
    return Row(
        model=name,
        threads=threads,
        least={runtime: 1e3 * min(values) for runtime, values in seconds.items()},
        median={runtime: 1e3 * statistics.median(values) for runtime, values in seconds.items()},
        ratio={
            runtime: float(np.median(ours / np.array(values)))
            for runtime, values in seconds.items()
            if runtime != "ours"
        },
        error=float(np.abs(results["ours"] - reference).max() / max(np.abs(reference).max(), 1e-30)),
    )


def _start(runtime: str, model: Path, library: Path, threads: int, inputs: Path, output: Path) -> subprocess.Popen[str]:
    paths = [str(path) for path in (model, library, inputs, output)]
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.latency", "--serve", runtime, str(threads), *paths],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads), "TVM_NUM_THREADS": str(threads)},
    )
    assert child.stdout is not None
    if child.stdout.readline().strip() != "ready":
        raise SystemExit(f"{runtime} cannot run {model.name}")
    return child


def _ask(child: subprocess.Popen[str], runs: int) -> list[float]:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{runs}\n")
    child.stdin.flush()
    seconds: list[float] = json.loads(child.stdout.readline())
    return seconds


def random_inputs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return one array for each input, from a fixed seed; symbolic dimensions are 1."""
    random = np.random.default_rng(0)
    constants = {tensor.name for tensor in model.graph.initializer}
    arrays = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        shape = [dim.dim_value or 1 for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        is_float = np.issubdtype(dtype, np.floating)
        arrays[value.name] = random.standard_normal(shape).astype(dtype) if is_float else np.ones(shape, dtype)
    return arrays


def compile_model(source: Path, folder: Path, target: str) -> tuple[Path, Path]:
    """Fold ``source`` as the pipeline does, and compile it; return the folded model and the library."""
    import yaml

    from forge_pipeline.codegen.build import build
    from forge_pipeline.codegen.options import Options
    from forge_pipeline.config import bind
    from forge_pipeline.ir import ONNXModule
    from forge_pipeline.locate import conf_dir
    from forge_pipeline.stages import fold
    from forge_pipeline.target import Target

    settings = yaml.safe_load((conf_dir() / "fold" / "basic.yaml").read_text())
    config = bind(fold.Config, {**settings, "verify": None}, where="fold")
    module = fold.run(config, ONNXModule.from_file(source)).output
    model, library = folder / "model.onnx", folder / "model_library.so"
    model.write_bytes(module.to_bytes())
    options = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
    library.write_bytes(build(module.mod, Target.from_tag(target), options).to_bytes())
    return model, library


def table(rows: Sequence[Row]) -> str:
    """Return the results as text, with the geometric mean of the ratios for each number of threads."""
    others = [runtime for runtime in RUNTIMES[1:] if rows and runtime in rows[0].ratio]
    heads = ["model", "threads", "ours ms (min, median)", *(f"ours / {other}" for other in others), "error"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = [row.model, str(row.threads), f"{row.least['ours']:.3f}, {row.median['ours']:.3f}"]
        cells += [f"{row.ratio[other]:.2f}" for other in others] + [f"{row.error:.1e}"]
        lines.append("| " + " | ".join(cells) + " |")
    for threads in sorted({row.threads for row in rows}):
        means = [
            statistics.geometric_mean([row.ratio[other] for row in rows if row.threads == threads]) for other in others
        ]
        cells = ["geometric mean", str(threads), "", *(f"{mean:.2f}" for mean in means), ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Measure, print the table, and write it as JSON if asked to."""
    if arguments[:1] == ["--serve"]:
        runtime, threads, *paths = arguments[1:]
        model, library, inputs, output = map(Path, paths)
        return serve(runtime, model, library, int(threads), inputs, output)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=sorted(MODELS), help="all of them by default")
    parser.add_argument("--file", action="append", type=Path, default=[], help="an ONNX file beside them")
    parser.add_argument("--threads", action="append", type=int)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--target", default="host")
    parser.add_argument("--no-openvino", action="store_true", help="leave out what the extra [bench] installs")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    runtimes = RUNTIMES[:2] if chosen.no_openvino else RUNTIMES
    rows = []
    with tempfile.TemporaryDirectory() as place:
        names = chosen.model or ([] if chosen.file else sorted(MODELS))
        sources = dict.fromkeys(names)
        sources.update({path.stem: path for path in chosen.file})
        for name, path in sources.items():
            folder = Path(place) / name
            folder.mkdir()
            source = path or folder / "source.onnx"
            if path is None:
                onnx.save(MODELS[name](), source)
            model, library = compile_model(source, folder, chosen.target)
            for threads in chosen.threads or [1]:
                rows.append(measure(name, model, library, threads, chosen.runs, runtimes))
                print(table(rows[-1:]).splitlines()[2], flush=True)
    print(table(rows))
    if chosen.json:
        chosen.json.write_text(
            json.dumps([{key: getattr(row, key) for key in Row.__slots__} for row in rows], indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
