"""Latency of compiled int8 models beside our own float code, and ONNX Runtime and OpenVINO on the same QDQ file.

    python -m benchmarks.latency_int8 --models ../shared/models --target intel/sapphire-rapids --output int8.json

They take turns (`benchmarks.turns`); the report has least and median milliseconds, and int8 / other: of the least
times, and the median over the turns. ONNX Runtime and OpenVINO get the same file, with all their optimizations. On a
machine without VNNI, ONNX Runtime adds products up in 16 bits, which saturates: there its results are not ours. Weights
of the models that `benchmarks.models` makes are random, and calibration data smooth noise: neither changes the time.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from benchmarks.turns import Contestant, compare, random_inputs
from forge_pipeline.codegen.options import Options

OTHERS = ("float", "onnxruntime", "openvino")
FILES = {
    "resnet8": "mlperf_tiny_resnet8/resnet8.onnx",
    "kws": "mlperf_tiny_kws_dscnn/kws.onnx",
    "vww": "mlperf_tiny_vww_mobilenetv1/vww.onnx",
    "squeezenet": "squeezenet/squeezenet_fp32.onnx",
    "yunet": "yunet/yunet_n_320_320.onnx",
}
MADE = ("resnet18", "resnet50", "mobilenet_v2", "bert_encoder")
OPTIONS = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)


def main(arguments: Sequence[str]) -> int:
    """Measure, print a table and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder with the models that are files")
    parser.add_argument("--target", default="host")
    parser.add_argument("--only", nargs="*", default=[*FILES, *MADE], choices=[*FILES, *MADE])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--runs", type=int, default=30, help="at least; small models have more")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args(arguments)
    report: dict[str, Any] = {"target": chosen.target, "results": {}}
    with tempfile.TemporaryDirectory(prefix="latency-int8-") as folder:
        for name in chosen.only:
            prepare(name, chosen.models, chosen.target, Path(folder))
            for threads in chosen.threads:
                row = measure(Path(folder) / name, threads, chosen.runs)
                report["results"].setdefault(name, {})[f"{threads} threads"] = row
                print(name, f"{threads} threads", json.dumps(row), file=sys.stderr, flush=True)
    for threads in chosen.threads:
        rows = {name: result[f"{threads} threads"] for name, result in report["results"].items()}
        report[f"geometric means, {threads} threads"] = means = geometric_means(rows.values())
        print(f"\n{threads} threads: milliseconds (least, median), and medians of int8 / other\n\n{table(rows, means)}")
    if chosen.output:
        chosen.output.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")
    return 0


def prepare(name: str, models: Path, tag: str, folder: Path) -> None:
    """Write a model's quantized ONNX file and both libraries."""
    sources = both(name, models, folder)
    onnx.save(sources["int8"], folder / f"{name}.onnx")
    for kind, source in sources.items():
        write_library(folder / f"{name}.{kind}", source, tag)


def write_library(path: Path, model: onnx.ModelProto, tag: str) -> None:
    """Compile a model for two cores of a target."""
    from forge_pipeline.codegen.build import build
    from forge_pipeline.target import Target

    path.write_bytes(build(model, replace(Target.from_tag(tag), cores=2), OPTIONS).to_bytes())


def both(name: str, models: Path, folder: Path) -> dict[str, onnx.ModelProto]:
    """Return a model as int8 and as float; ``folder`` is for files in between."""
    from benchmarks.accuracy import folded, smooth_noise
    from benchmarks.models import MODELS
    from forge_pipeline.data.fitting import input_specs

    path = models / FILES[name] if name in FILES else folder / f"{name}.source.onnx"
    if name not in FILES:
        onnx.save(MODELS[name](), path)
    model = folded(path)
    return {"int8": quantize(model, list(smooth_noise(input_specs(model.mod), 4))), "float": model.mod}


def quantize(model: Any, feeds: Sequence[Any]) -> onnx.ModelProto:
    """Return the model quantized by minimum and maximum."""
    from benchmarks.accuracy import _conf
    from forge_pipeline.config import bind
    from forge_pipeline.quantization.calibration.observe import calibrate
    from forge_pipeline.stages import quantize as stage

    ranges = calibrate(model, feeds, total=len(feeds), histogram_values=1024)
    changes = {"reduce_range": False, "calib_method": "minmax", "improve": [], "data": None}
    config = bind(stage.Config, {**_conf("quantize/static"), **changes}, where="quantize")
    quantized: onnx.ModelProto = stage.run(config, model=model, ranges=ranges).output.mod
    return quantized


def measure(stem: Path, threads: int, runs: int) -> dict[str, Any]:
    """Return least and median milliseconds, and ratios: of the least, and the median over the turns."""
    quantized = stem.with_suffix(".onnx")
    contestants = {
        "int8": Contestant(runtime="ours", model=stem.with_suffix(".int8")),
        "float": Contestant(runtime="ours", model=stem.with_suffix(".float")),
        "onnxruntime": Contestant(runtime="onnxruntime", model=quantized),
        "openvino": Contestant(runtime="openvino", model=quantized),
    }
    found = compare(contestants, random_inputs(onnx.load(quantized)), threads=threads, runs=runs)
    least, median, ratios = found.least(), found.median(), found.ratios("int8")
    row: dict[str, Any] = {"runs": found.runs, "failed": found.failed}
    row.update({f"{name} ms": {"least": round(least[name], 4), "median": round(median[name], 4)} for name in least})
    for other, ratio in ratios.items():
        row[f"int8 / {other}"] = {"least": round(least["int8"] / least[other], 3), "median": round(ratio, 3)}
    return row


def geometric_means(rows: Collection[Mapping[str, Any]]) -> dict[str, float]:
    """Return the geometric means of the median ratios, each over the models that the other could run."""
    means = {}
    for key in (f"int8 / {other}" for other in OTHERS):
        logarithms = [math.log(row[key]["median"]) for row in rows if key in row]
        if logarithms:
            means[key] = round(math.exp(statistics.fmean(logarithms)), 3)
    return means


def table(rows: Mapping[str, Mapping[str, Any]], means: Mapping[str, float]) -> str:
    """Return the results as a Markdown table."""
    times, ratios = [f"{name} ms" for name in ("int8", *OTHERS)], [f"int8 / {other}" for other in OTHERS]
    lines = [["model", *times, *ratios], ["---", *["---:"] * (len(times) + len(ratios))]]
    for name, row in rows.items():
        cells = [f"{row[key]['least']:.3f}, {row[key]['median']:.3f}" if key in row else "-" for key in times]
        lines.append([name, *cells, *(f"{row[key]['median']:.2f}" if key in row else "-" for key in ratios)])
    means_shown = (f"{means[key]:.2f}" if key in means else "-" for key in ratios)
    lines.append(["geometric mean", *[""] * len(times), *means_shown])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
