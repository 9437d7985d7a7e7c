"""Latency of compiled models beside ONNX Runtime and OpenVINO.

One process for each runtime, and only one of them runs at a time: ONNX Runtime's threads go on spinning after a run
and would take the core from whoever is measured next. The processes take turns, so that what else the machine does
falls on all of them alike; a turn is one run of a large model and several of a small one. Ratios are medians over the
turns of ours / theirs.

The others get what suits them best: the newest releases, all optimizations, as many threads as we have, initializers
that are no inputs, symbolic extents fixed to what is measured; OpenVINO float32 and its hint for latency. ONNX
Runtime's threads spin, as they do by default. We get the file as it is, through the pipeline's fold stage, and one
library for any batch.

    python -m benchmarks.latency --json latency.json                      # everything, with 1 and with 2 threads
    python -m benchmarks.latency --json latency.json --resume             # what the file lacks
    python -m benchmarks.latency --json latency.json --models kws resnet50 --threads 2
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.models import MODELS

RUNTIMES = ("ours", "onnxruntime", "openvino")
FOLDER = Path("../shared/models")
"""Where models that are files lie; without it, those that ``benchmarks.models`` makes are measured."""

EXTENTS = {"length": 58, "height": 320, "width": 320}
"""What symbolic extents are measured with; those not listed are 1."""

TURN = 0.01
"""Seconds that a turn lasts at least, so that small models run with warm caches, as they do in a program's loop."""
MOST_PER_TURN = 50
LEAST_TURNS = 10
PAUSE = 0.02
"""Seconds between turns, for the threads of the runtime before to fall asleep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model with one number of threads: milliseconds per runtime, and ours relative to the others.

    ``error`` is the largest difference from ONNX Runtime's first output, relative to its largest value. ``failed``
    says why a runtime is missing.
    """

    model: str
    threads: int
    runs: int
    least: dict[str, float]
    median: dict[str, float]
    ratio: dict[str, float]
    error: float | None
    failed: dict[str, str]


class CannotRunError(Exception):
    """A runtime's reason for not running a model."""


def serve(runtime: str, model: Path, threads: int, inputs: Path, output: Path) -> int:
    """Be one runtime: load, write one result, then for every line with a number n run n times and print seconds."""
    try:
        run = _RUNTIMES[runtime](model, threads, dict(np.load(inputs)))
        np.save(output, np.asarray(run()))
    except Exception as error:  # noqa: BLE001 - whatever a runtime raises is its reason
        print("cannot", type(error).__name__, " ".join(str(error).split())[:200], flush=True)
        return 1
    print("ready", flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        print(json.dumps(seconds), flush=True)
    return 0


def _ours(model: Path, threads: int, given: dict[str, np.ndarray]) -> Callable[[], Any]:
    from forge_pipeline.runtime.engine import Engine

    engine = Engine(model, threads=threads)
    return lambda: engine(**given)[0]


def _onnxruntime(model: Path, threads: int, given: dict[str, np.ndarray]) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, given)[0]


def _openvino(model: Path, threads: int, given: dict[str, np.ndarray]) -> Callable[[], Any]:
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


def measure(name: str, models: Mapping[str, Path], threads: int, runs: int, failed: Mapping[str, str]) -> Row:
    """Start the runtimes, let them take turns until each has ``runs`` runs at least, and compare.

    ``models`` are the files that the runtimes load; ``failed`` says which have none, and why.
    """
    failed = dict(failed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        np.savez(folder / "inputs.npz", **random_inputs(onnx.load(models["onnxruntime"])))
        children: dict[str, subprocess.Popen[str]] = {}
        try:
            for runtime, model in models.items():
                try:
                    children[runtime] = _start(runtime, model, threads, folder)
                except CannotRunError as error:
                    failed[runtime] = str(error)
            seconds = _take_turns(children, runs)
        finally:
            for child in children.values():
                child.kill()
                child.communicate()
        results = {runtime: np.load(folder / f"{runtime}.npy") for runtime in children}
    medians = {runtime: [statistics.median(turn) for turn in turns] for runtime, turns in seconds.items()}
    both = {"ours", "onnxruntime"} <= results.keys()
    return Row(
        model=name,
        threads=threads,
        runs=min((sum(map(len, turns)) for turns in seconds.values()), default=0),
        least={runtime: 1e3 * min(map(min, turns)) for runtime, turns in seconds.items()},
        median={runtime: 1e3 * statistics.median(itertools.chain(*turns)) for runtime, turns in seconds.items()},
        ratio={
            runtime: statistics.median(a / b for a, b in zip(medians["ours"], turns, strict=True))
            for runtime, turns in medians.items()
            if runtime != "ours" and "ours" in medians
        },
        error=_error(results["ours"], results["onnxruntime"]) if both else None,
        failed=failed,
    )


def _take_turns(children: Mapping[str, subprocess.Popen[str]], runs: int) -> dict[str, list[list[float]]]:
    """Return the seconds of each runtime's runs, turn by turn."""
    if not children:
        return {}
    quickest = min(min(_ask(child, 3)) for child in children.values())
    count = max(1, min(MOST_PER_TURN, math.ceil(TURN / quickest)))
    seconds: dict[str, list[list[float]]] = {runtime: [] for runtime in children}
    for _ in range(max(LEAST_TURNS, math.ceil(runs / count))):
        for runtime, child in children.items():
            time.sleep(PAUSE)
            warm_up = max(1, count // 5)  # brings back caches and threads
            seconds[runtime].append(_ask(child, warm_up + count)[warm_up:])
    return seconds


def _error(ours: np.ndarray, reference: np.ndarray) -> float:
    scale = max(np.abs(reference).max(initial=0.0), 1e-30)
    return float(np.abs(ours.astype(np.float64) - reference).max(initial=0.0) / scale)


def _start(runtime: str, model: Path, threads: int, folder: Path) -> subprocess.Popen[str]:
    paths = [str(path) for path in (model, folder / "inputs.npz", folder / f"{runtime}.npy")]
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.latency", "--serve", runtime, str(threads), *paths],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    assert child.stdout is not None
    answer = child.stdout.readline().strip()
    if answer != "ready":
        child.kill()
        child.communicate()
        raise CannotRunError(answer.removeprefix("cannot ") or f"it died, exit status {child.returncode}")
    return child


def _ask(child: subprocess.Popen[str], runs: int) -> list[float]:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{runs}\n")
    child.stdin.flush()
    seconds: list[float] = json.loads(child.stdout.readline())
    return seconds


def random_inputs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return one array for each input, from a fixed seed."""
    random = np.random.default_rng(0)
    arrays = {}
    for value in _inputs(model):
        tensor = value.type.tensor_type
        shape = [dim.dim_value or EXTENTS.get(dim.dim_param, 1) for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        is_float = np.issubdtype(dtype, np.floating)
        arrays[value.name] = random.standard_normal(shape).astype(dtype) if is_float else np.ones(shape, dtype)
    return arrays


def _inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    constants = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in constants]


def at_its_best(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` as other runtimes like it: initializers are no inputs, and symbolic extents are numbers."""
    best = onnx.ModelProto()
    best.CopyFrom(model)
    inputs = _inputs(best)
    del best.graph.input[:]
    best.graph.input.extend(inputs)
    del best.graph.value_info[:]
    for value in best.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_value = dim.dim_value or EXTENTS.get(dim.dim_param, 1)
    for value in best.graph.output:
        value.type.tensor_type.ClearField("shape")
    best.ir_version = max(best.ir_version, 4)  # before it, every initializer had to be an input
    return best


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


def prepare(
    name: str, source: Path | None, folder: Path, target: str, runtimes: Sequence[str]
) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the file that each runtime loads, and why one has none."""
    from forge_pipeline.errors import ForgeError

    folder.mkdir()
    if source is None:
        source = folder / "source.onnx"
        onnx.save(MODELS[name](), source)
    best = folder / "best.onnx"
    onnx.save(at_its_best(onnx.load(source)), best)
    files = dict.fromkeys(runtimes, best)
    try:
        files["ours"] = compile_model(source, folder, target)[1]
    except ForgeError as error:
        del files["ours"]
        return files, {"ours": " ".join(str(error).split())[:200]}
    return files, {}


def table(rows: Sequence[Row]) -> str:
    """Return the results as text, with the geometric mean of the ratios for each number of threads."""
    others = RUNTIMES[1:]
    heads = ["model", "threads", *(f"{runtime} ms (min, median)" for runtime in RUNTIMES)]
    heads += [*(f"ours / {other}" for other in others), "error"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = [row.model, str(row.threads)]
        cells += [f"{row.least[r]:.3f}, {row.median[r]:.3f}" if r in row.least else "-" for r in RUNTIMES]
        cells += [f"{row.ratio[other]:.2f}" if other in row.ratio else "-" for other in others]
        lines.append("| " + " | ".join([*cells, "-" if row.error is None else f"{row.error:.1e}"]) + " |")
    for threads in sorted({row.threads for row in rows}):
        cells = ["geometric mean", str(threads), "", "", ""]
        for other in others:
            ratios = [row.ratio[other] for row in rows if row.threads == threads and other in row.ratio]
            cells.append(f"{statistics.geometric_mean(ratios):.2f}" if ratios else "-")
        lines.append("| " + " | ".join([*cells, ""]) + " |")
    reasons = {(row.model, runtime): reason for row in rows for runtime, reason in row.failed.items()}
    lines += [f"{model}: {runtime} cannot run it: {reason}" for (model, runtime), reason in reasons.items()]
    return "\n".join(lines)


def _read(path: Path | None) -> dict[tuple[str, int], Row]:
    if path is None or not path.exists():
        return {}
    rows = [Row(**row) for row in json.loads(path.read_text())["rows"]]
    return {(row.model, row.threads): row for row in rows}


def _write(path: Path, rows: Mapping[tuple[str, int], Row], target: str) -> None:
    packages = {name: version(name) for name in ("onnxruntime", "openvino", "apache-tvm", "numpy")}
    report = {"target": target, "versions": packages, "rows": [asdict(rows[key]) for key in sorted(rows)]}
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(report, indent=1))
    temporary.replace(path)


def main(arguments: Sequence[str]) -> int:
    """Measure, print the table, and write it as JSON if asked to, model by model."""
    if arguments[:1] == ["--serve"]:
        runtime, threads, *paths = arguments[1:]
        model, inputs, output = map(Path, paths)
        return serve(runtime, model, int(threads), inputs, output)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", metavar="NAME", help="all of them by default")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="with models that are files")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--runs", type=int, default=30, help="at least; small models have more")
    parser.add_argument("--target", default="host")
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=RUNTIMES)
    parser.add_argument("--json", type=Path, help="updated after every model; other rows in it are kept")
    parser.add_argument("--resume", action="store_true", help="leave out what the JSON has already")
    chosen = parser.parse_args(arguments)
    sources: dict[str, Path | None] = {path.stem: path for path in sorted(chosen.folder.glob("**/*.onnx"))}
    sources.update(dict.fromkeys(MODELS))
    unknown = set(chosen.models or ()) - sources.keys()
    if unknown:
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(sources)}")
    runtimes = [runtime for runtime in RUNTIMES if runtime in {"ours", "onnxruntime", *chosen.runtimes}]
    rows = _read(chosen.json)
    wanted = [(name, threads) for name in chosen.models or sources for threads in chosen.threads]
    missing = [key for key in wanted if not (chosen.resume and key in rows)]
    with tempfile.TemporaryDirectory() as place:
        for name in dict.fromkeys(name for name, _ in missing):
            models, failed = prepare(name, sources[name], Path(place) / name, chosen.target, runtimes)
            for threads in (threads for other, threads in missing if other == name):
                rows[name, threads] = measure(name, models, threads, chosen.runs, failed)
                print(table([rows[name, threads]]).splitlines()[2], flush=True)
                if chosen.json:
                    _write(chosen.json, rows, chosen.target)
    print(table([rows[key] for key in wanted]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
