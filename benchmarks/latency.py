"""Latency of compiled models beside ONNX Runtime and OpenVINO, and MNN, ncnn and LiteRT if asked for.

They take turns (`benchmarks.turns`); ratios are medians over the turns of ours / theirs.

The others get what suits them best: the newest releases, all optimizations, as many threads as we have, initializers
that are no inputs, open extents fixed to what is measured; OpenVINO float32 (or, `openvino_bf16`, its hint for
bfloat16) and its hint for latency. ONNX Runtime's threads spin, as they do by default. `benchmarks.others` says how it
is with MNN, ncnn and LiteRT. We get the file as it is, through the pipeline's load and fold stages, and one library for
any sizes; `ours_fixed` is a library for the measured sizes alone. A file that they cannot read, a TensorFlow Lite one,
they get as the ONNX that our load stage makes of it.
Open extents are EXTENTS', ``--size``'s, a batch of 1, or the first that ONNX Runtime takes.

    python -m benchmarks.latency --json latency.json                      # everything, with 1 and with 2 threads
    python -m benchmarks.latency --json latency.json --resume             # what the file lacks
    python -m benchmarks.latency --json latency.json --models kws resnet50 --threads 2
    python -m benchmarks.latency --threads 1 --runtimes onnxruntime openvino mnn ncnn --svg peers.svg
    python -m benchmarks.latency --models some/detector.onnx other/pose.tflite --size height=320 --runtimes onnxruntime
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from benchmarks.models import MODELS
from benchmarks.others import OTHERS, NoFileError
from benchmarks.turns import EXTENTS, RUNTIMES, Contestant, compare, real_inputs
from forge_pipeline.evaluation.work import Work, work_of
from forge_pipeline.runners.peaks import bound_ms

if TYPE_CHECKING:
    from forge_pipeline.codegen.options import FloatArithmetic
    from forge_pipeline.ir import ONNXModule

FOLDER = Path("../shared/models")
"""Where models that are files lie; without it, those that ``benchmarks.models`` makes are measured."""

PACKAGES = {"openvino_bf16": "openvino", "openvino_f16": "openvino", "mnn": "MNN", "litert": "ai-edge-litert"}
"""What packages of runtimes are called, where they have another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model with one number of threads: milliseconds per runtime, and ours relative to the others.

    ``error`` is the largest difference from ONNX Runtime's first output, relative to its largest value. ``failed``
    says why a runtime is missing. ``slowest`` are kernels of ours that take most, with their share of the time.
    ``bound`` is the roofline: the least milliseconds that one core's measured peaks allow in float32, with products
    summed up directly; None with several threads or another arithmetic.
    """

    model: str
    threads: int
    runs: int
    least: dict[str, float]
    median: dict[str, float]
    ratio: dict[str, float]
    error: float | None
    failed: dict[str, str]
    slowest: dict[str, float] = field(default_factory=dict)
    bound: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The file that each runtime loads, why one has none, what all run on, and what that is to compute in float32."""

    files: Mapping[str, Path]
    failed: Mapping[str, str]
    inputs: Mapping[str, np.ndarray]
    work: Work | None


def measure(name: str, prepared: Prepared, threads: int, runs: int, slowest: int = 0) -> Row:
    """Compare the runtimes that have a file; ``slowest``: how many of our kernels to name."""
    contestants = {runtime: Contestant(runtime=runtime, model=model) for runtime, model in prepared.files.items()}
    found = compare(contestants, prepared.inputs, threads=threads, runs=runs)
    outputs, least = found.outputs, found.least()
    return Row(
        model=name,
        threads=threads,
        runs=found.runs,
        least=least,
        median=found.median(),
        ratio=found.ratios("ours"),
        error=_error(outputs["ours"], outputs["onnxruntime"]) if {"ours", "onnxruntime"} <= outputs.keys() else None,
        failed={**prepared.failed, **found.failed},
        slowest=_slowest(prepared, threads, slowest) if slowest and "ours" in found.outputs else {},
        bound=bound_ms(prepared.work, min(least.values())) if threads == 1 and prepared.work and least else None,
    )


def _slowest(prepared: Prepared, threads: int, count: int) -> dict[str, float]:
    from forge_runtime.engine import Engine

    kernels = Engine(prepared.files["ours"], threads=threads).profile(*prepared.inputs.values())
    return {kernel.name: kernel.share for kernel in kernels[:count]}


def _error(ours: np.ndarray, reference: np.ndarray) -> float | None:
    """Return the largest difference as a part of the largest value; None where another number of things was found."""
    if ours.shape != reference.shape:
        return None
    scale = max(np.abs(reference).max(initial=0.0), 1e-30)
    return float(np.abs(ours.astype(np.float64) - reference).max(initial=0.0) / scale)


def at_its_best(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Return ``model`` as other runtimes like it: initializers are no inputs, extents are those of ``inputs``."""
    best = onnx.ModelProto()
    best.CopyFrom(model)
    own = real_inputs(best)
    del best.graph.input[:]
    best.graph.input.extend(own)
    del best.graph.value_info[:]
    for value, array in zip(best.graph.input, inputs.values(), strict=True):
        for dim, extent in zip(value.type.tensor_type.shape.dim, array.shape, strict=True):
            dim.dim_value = extent
    for value in best.graph.output:
        value.type.tensor_type.ClearField("shape")
    best.ir_version = max(best.ir_version, 4)  # before it, every initializer had to be an input
    return best


def inputs_for(model: onnx.ModelProto, sizes: Mapping[str, int]) -> Mapping[str, np.ndarray]:
    """Return arrays that ONNX Runtime runs ``model`` with, from a fixed seed."""
    from forge_pipeline.codegen.verification.judge import reference_of
    from forge_pipeline.passes.verification.candidate_sizes import Preferred
    from forge_pipeline.passes.verification.made_up import Kinds, made_up

    preferred = Preferred(batch=1, extent=128, given=sizes)
    return made_up(model, reference_of(model), preferred, Kinds(samples=1, seed=0, varied=False)).feeds[0]


def folded(source: Path) -> ONNXModule:
    """Return the model of a file as the pipeline's load and fold stages leave it."""
    import yaml

    from forge_pipeline.api.load import load
    from forge_pipeline.config import bind
    from forge_pipeline.locate import conf_dir
    from forge_pipeline.stages import fold

    settings = yaml.safe_load((conf_dir() / "fold" / "basic.yaml").read_text())
    config = bind(fold.Config, {**settings, "verify": None}, where="fold")
    output: ONNXModule = fold.run(config, load(source)).output
    return output


def prepare(
    source: Path,
    folder: Path,
    target: str,
    runtimes: Sequence[str],
    sizes: Mapping[str, int],
    arithmetic: FloatArithmetic = "float32",
) -> Prepared:
    """Compile ``source`` in ``folder``, and write what the other runtimes load."""
    from forge_pipeline.codegen.build import build
    from forge_pipeline.codegen.options import Options
    from forge_pipeline.errors import ForgeError
    from forge_pipeline.target import Target

    model = folded(source)
    given = inputs_for(model.mod, sizes)
    theirs = onnx.load(source) if source.suffix == ".onnx" else model.mod
    best, library = folder / "best.onnx", folder / "model_library.so"
    onnx.save(at_its_best(theirs, given), best)
    files, failed = dict.fromkeys(runtimes, best) | {"ours": library}, {}
    for name in OTHERS.keys() & files.keys():
        try:
            files[name] = OTHERS[name][0](source, best, given)
        except NoFileError as error:
            del files[name]
            failed[name] = str(error)
    options = Options(generator="auto", opt_level=3, float16=False, channel_layout=None, float_arithmetic=arithmetic)
    if "ours_fixed" in files:
        files["ours_fixed"] = folder / "fixed_library.so"
    for name in ("ours", "ours_fixed"):
        if name not in files:
            continue
        try:
            compiled = model if name == "ours" else folded(best)
            files[name].write_bytes(build(compiled.mod, Target.from_tag(target), options).to_bytes())
        except ForgeError as error:
            del files[name]
            failed[name] = " ".join(str(error).split())[:200]
    return Prepared(
        files=files, failed=failed, inputs=given, work=work_of(model, given) if arithmetic == "float32" else None
    )


def table(rows: Sequence[Row]) -> str:
    """Return the results as text, with the geometric mean of the ratios for each number of threads."""
    measured = [runtime for runtime in RUNTIMES if any(runtime in row.least for row in rows)]
    others = [runtime for runtime in measured if runtime != "ours"]
    heads = ["model", "threads", *(f"{runtime} ms (min, median)" for runtime in measured)]
    heads += [*(f"ours / {other}" for other in others), "error"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = [row.model, str(row.threads)]
        cells += [f"{row.least[r]:.3f}, {row.median[r]:.3f}" if r in row.least else "-" for r in measured]
        cells += [f"{row.ratio[other]:.2f}" if other in row.ratio else "-" for other in others]
        lines.append("| " + " | ".join([*cells, "-" if row.error is None else f"{row.error:.1e}"]) + " |")
    for threads in sorted({row.threads for row in rows}):
        cells = ["geometric mean", str(threads), *[""] * len(measured)]
        for other in others:
            ratios = [row.ratio[other] for row in rows if row.threads == threads and other in row.ratio]
            cells.append(f"{statistics.geometric_mean(ratios):.2f}" if ratios else "-")
        lines.append("| " + " | ".join([*cells, ""]) + " |")
    for row in rows:
        if row.slowest:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in row.slowest.items())
            lines.append(f"{row.model}: the slowest kernels take {shares}")
    reasons = {(row.model, runtime): reason for row in rows for runtime, reason in row.failed.items()}
    lines += [f"{model}: {runtime} cannot run it: {reason}" for (model, runtime), reason in reasons.items()]
    return "\n".join(lines)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write a chart: what part of the roofline each runtime reaches, a line a model."""
    from matplotlib.figure import Figure

    bounds = {row.model: row.bound for row in rows if row.bound is not None}
    shown = [row for row in rows if row.threads == 1 and row.model in bounds]
    shown.sort(key=lambda row: bounds[row.model] / row.least.get("ours", math.inf))
    markers = dict(zip(RUNTIMES, itertools.cycle("os^vDP*X"), strict=False))
    figure = Figure(figsize=(8, 1 + 0.28 * len(shown)), layout="constrained")
    axes = figure.subplots()
    for runtime, marker in markers.items():
        found = [(bounds[row.model] / row.least[runtime], at) for at, row in enumerate(shown) if runtime in row.least]
        if found:
            axes.plot(*zip(*found, strict=True), linestyle="none", marker=marker, label=runtime)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(shown)), [row.model for row in shown])
    axes.set_xlim(left=0)
    axes.set_xlabel("part of the roofline, one thread")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def _read(path: Path | None) -> dict[tuple[str, int], Row]:
    if path is None or not path.exists():
        return {}
    rows = [Row(**row) for row in json.loads(path.read_text())["rows"]]
    return {(row.model, row.threads): row for row in rows}


def _write(path: Path, rows: Mapping[tuple[str, int], Row], target: str) -> None:
    names = {"onnxruntime", "apache-tvm", "numpy", *(runtime for row in rows.values() for runtime in row.least)}
    packages = {name: version(PACKAGES.get(name, name)) for name in sorted(names - {"ours", "ours_fixed"})}
    report = {"target": target, "versions": packages, "rows": [asdict(rows[key]) for key in sorted(rows)]}
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(report, indent=1))
    temporary.replace(path)


def main(arguments: Sequence[str]) -> int:
    """Measure, print the table, and write it as JSON if asked to, model by model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", metavar="NAME", help="or a file; all of them by default")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="with models that are files")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--runs", type=int, default=30, help="at least; small models have more")
    parser.add_argument("--target", default="host")
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=["ours", "onnxruntime", "openvino"])
    parser.add_argument("--arithmetic", default="float32", help="ours: float32, float16 or bfloat16")
    parser.add_argument("--json", type=Path, help="updated after every model; other rows in it are kept")
    parser.add_argument("--resume", action="store_true", help="leave out what the JSON has already")
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="name so many of our kernels")
    parser.add_argument("--svg", type=Path, help="a chart of all runtimes below the roofline, of one thread")
    parser.add_argument("--size", nargs="+", default=[], metavar="EXTENT=SIZE", help="of open extents, by name")
    chosen = parser.parse_args(arguments)
    sizes = EXTENTS | {name: int(size) for name, size in (item.split("=") for item in chosen.size)}
    sources: dict[str, Path | None] = {path.stem: path for path in sorted(chosen.folder.glob("**/*.onnx"))}
    sources.update(dict.fromkeys(MODELS))
    names = []
    for given in chosen.models or list(sources):
        path = Path(given)
        names.append(path.name if path.is_file() else given)
        if path.is_file():
            sources[path.name] = path
        elif given not in sources:
            parser.error(f"no model and no file {given}; there are {', '.join(sources)}")
    runtimes = [runtime for runtime in RUNTIMES if runtime in {"ours", "onnxruntime", *chosen.runtimes}]
    rows = _read(chosen.json)
    wanted = [(name, threads) for name in names for threads in chosen.threads]
    missing = [key for key in wanted if not (chosen.resume and key in rows)]
    for name in dict.fromkeys(name for name, _ in missing):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            source = sources[name]
            if source is None:
                source = folder / "source.onnx"
                onnx.save(MODELS[name](), source)
            prepared = prepare(source, folder, chosen.target, runtimes, sizes, chosen.arithmetic)
            for threads in (threads for other, threads in missing if other == name):
                rows[name, threads] = measure(name, prepared, threads, chosen.runs, chosen.slowest)
                print(table([rows[name, threads]]).splitlines()[2], flush=True)
                if chosen.json:
                    _write(chosen.json, rows, chosen.target)
    print(table([rows[key] for key in wanted]))
    if chosen.svg:
        draw([rows[key] for key in wanted], chosen.svg)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
