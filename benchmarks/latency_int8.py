"""Latency of compiled int8 models beside our own float code, and ONNX Runtime and OpenVINO on the same QDQ file.

    python -m benchmarks.latency_int8 --models ../shared/models --target intel/sapphire-rapids --output int8.json

Every measurement is a process of its own, one at a time, since ONNX Runtime's threads keep spinning after a run. The
runtimes take turns; a round gives one ratio, and the report has the ratio of the best times and the median of the
rounds' ratios. ONNX Runtime and OpenVINO get the same file, with all their optimizations; a machine without VNNI has
ONNX Runtime add products up in 16 bits, which saturates, so there its results are not ours. Weights of the models that
`benchmarks.models` makes are random, and calibration data smooth noise: neither changes the time.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

RUNTIMES = ("int8", "float", "onnxruntime", "openvino")
FILES = {
    "resnet8": "mlperf_tiny_resnet8/resnet8.onnx",
    "kws": "mlperf_tiny_kws_dscnn/kws.onnx",
    "vww": "mlperf_tiny_vww_mobilenetv1/vww.onnx",
    "squeezenet": "squeezenet/squeezenet_fp32.onnx",
    "yunet": "yunet/yunet_n_320_320.onnx",
}
MADE = ("resnet18", "resnet50", "mobilenet_v2", "bert_encoder")
SECONDS = 0.6
"""How long a process measures, after as many runs to warm up as fit into a third of it."""


def main(arguments: Sequence[str]) -> int:
    """Measure, print a table and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder with the models that are files")
    parser.add_argument("--target", default="host")
    parser.add_argument("--only", nargs="*", default=[*FILES, *MADE], choices=[*FILES, *MADE])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args(arguments)
    report: dict[str, Any] = {"target": chosen.target, "results": {}}
    with tempfile.TemporaryDirectory(prefix="latency-int8-") as folder:
        for name in chosen.only:
            prepare(name, chosen.models, chosen.target, Path(folder))
            for threads in chosen.threads:
                row = compare(Path(folder) / name, threads, chosen.rounds)
                report["results"].setdefault(name, {})[f"{threads} threads"] = row
                print(name, f"{threads} threads", json.dumps(row), flush=True)
    for threads in chosen.threads:
        rows = [result[f"{threads} threads"] for result in report["results"].values()]
        means = {
            key: round(math.exp(statistics.fmean(math.log(row[key]["median"]) for row in rows)), 3)
            for key in (f"int8 / {other}" for other in RUNTIMES[1:])
        }
        report[f"geometric means, {threads} threads"] = means
        print(f"geometric means, {threads} threads", json.dumps(means))
    if chosen.output:
        chosen.output.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")
    return 0


def prepare(name: str, models: Path, tag: str, folder: Path) -> None:
    """Write a model's quantized ONNX file and both libraries."""
    from benchmarks.accuracy import folded, smooth_noise
    from benchmarks.models import MODELS
    from forge_pipeline.codegen.build import build
    from forge_pipeline.codegen.options import Options
    from forge_pipeline.data.fitting import input_specs
    from forge_pipeline.target import Target

    path = models / FILES[name] if name in FILES else folder / f"{name}.source.onnx"
    if name not in FILES:
        onnx.save(MODELS[name](), path)
    model = folded(path)
    quantized = quantize(model, list(smooth_noise(input_specs(model.mod), 4)))
    target = Target.from_tag(tag)
    options = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
    onnx.save(quantized, folder / f"{name}.onnx")
    for kind, source in (("int8", quantized), ("float", model.mod)):
        (folder / f"{name}.{kind}").write_bytes(build(source, replace(target, cores=2), options).to_bytes())


def quantize(model: Any, feeds: Sequence[Any]) -> onnx.ModelProto:
    """Return the model quantized by minimum and maximum."""
    from benchmarks.accuracy import _conf
    from forge_pipeline.config import bind
    from forge_pipeline.quantization.calibration import calibrate
    from forge_pipeline.stages import quantize as stage

    ranges = calibrate(model, feeds, total=len(feeds), histogram_values=1024, probe_bytes=0)
    changes = {"reduce_range": False, "calib_method": "minmax", "improve": []}
    config = bind(stage.Config, {**_conf("quantize/static"), **changes}, where="quantize")
    quantized: onnx.ModelProto = stage.run(config, model=model, ranges=ranges).output.mod
    return quantized


def compare(stem: Path, threads: int, rounds: int) -> dict[str, Any]:
    """Return best times in milliseconds, and ratios: of the best, and the median over the rounds."""
    times: dict[str, list[float]] = {runtime: [] for runtime in RUNTIMES}
    for turn in range(rounds):
        order = RUNTIMES if turn % 2 == 0 else RUNTIMES[::-1]
        for runtime in order:
            command = [sys.executable, "-m", "benchmarks.latency_int8", "--measure", runtime, str(stem), str(threads)]
            answer = subprocess.run(command, check=True, capture_output=True, text=True)
            times[runtime].append(float(answer.stdout.split()[-1]))
    row: dict[str, Any] = {f"{runtime} ms": round(min(values), 4) for runtime, values in times.items()}
    for other in RUNTIMES[1:]:
        ratios = [ours / theirs for ours, theirs in zip(times["int8"], times[other], strict=True)]
        row[f"int8 / {other}"] = {
            "best": round(min(times["int8"]) / min(times[other]), 3), "median": round(statistics.median(ratios), 3),
        }  # fmt: skip
    return row


def measure(runtime: str, stem: str, threads: int) -> float:
    """Return the best time of a run in milliseconds."""
    model = onnx.load(f"{stem}.onnx")
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    rng = np.random.default_rng(0)
    shapes = [[dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim] for value in inputs]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    once = _runner(runtime, stem, threads, [value.name for value in inputs], arrays)
    best, until = math.inf, time.perf_counter() + SECONDS / 3
    while time.perf_counter() < until:
        once()
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        start = time.perf_counter()
        once()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def _runner(runtime: str, stem: str, threads: int, names: Sequence[str], arrays: Sequence[Any]) -> Callable[[], object]:
    if runtime == "onnxruntime":
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = ort.InferenceSession(f"{stem}.onnx", options, providers=["CPUExecutionProvider"])
        feeds = dict(zip(names, arrays, strict=True))
        return lambda: session.run(None, feeds)
    if runtime == "openvino":
        import openvino

        core = openvino.Core()
        settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        request = core.compile_model(core.read_model(f"{stem}.onnx"), "CPU", settings).create_infer_request()
        given = dict(zip(names, arrays, strict=True))
        return lambda: request.infer(given)
    from forge_pipeline.runtime.engine import Engine

    engine = Engine(Path(f"{stem}.{runtime}").read_bytes(), threads=threads)
    return lambda: engine(*arrays)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(measure(sys.argv[2], sys.argv[3], int(sys.argv[4])))
        sys.exit(0)
    sys.exit(main(sys.argv[1:]))
