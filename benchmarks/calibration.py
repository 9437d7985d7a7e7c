"""Memory and processor time of calibration, beside ONNX Runtime's Percentile calibrator on the same tensors.

    python -m benchmarks.calibration --model resnet50 --samples 32 128 512 --output calibration.json

Every measurement is a process of its own, one at a time, on one thread. Time is processor time (user and system);
memory is the peak resident set. The two are compared by what one more sample costs, between the two counts of
`--reference`: few, since ONNX Runtime keeps every activation.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.models import MODELS
from forge_pipeline.data import Feed
from forge_pipeline.data.fitting import input_specs
from forge_pipeline.ir import ONNXModule
from forge_pipeline.quantization.calibration.observe import calibrate
from forge_pipeline.quantization.calibration.range_methods import METHODS, Options
from forge_pipeline.quantization.network import Network, prepare
from forge_pipeline.quantization.plan import make_plan

PERCENTILE = Options(levels=255, percentile=99.999, symmetric=False)


def feeds(model: onnx.ModelProto, count: int) -> Iterator[Feed]:
    """Yield normally distributed inputs, made when they are asked for."""
    draw = np.random.default_rng(0)
    for _ in range(count):
        yield {
            spec.name: draw.standard_normal([d if isinstance(d, int) else 1 for d in spec.shape], dtype=np.float32)
            for spec in input_specs(model)
        }


def ours(path: Path, count: int) -> None:
    """Calibrate for every method, and compute the ranges of one."""
    model = ONNXModule.from_file(path)
    ranges = calibrate(model, feeds(model.mod, count), total=count, histogram_values=16384)
    for statistics in ranges.values():
        METHODS["percentile"](statistics, PERCENTILE)


def theirs(path: Path, count: int) -> None:
    """Calibrate the same tensors with ONNX Runtime's Percentile calibrator."""
    import onnxruntime as ort
    from onnxruntime.quantization import CalibrationDataReader
    from onnxruntime.quantization.calibrate import PercentileCalibrater

    model = onnx.load(path)
    network = Network(prepare(model))
    tensors = set(make_plan(network).values)
    infos = onnx.shape_inference.infer_shapes(network.model).graph
    known = {value.name: value for value in (*infos.value_info, *infos.output, *infos.input)}

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.feeds = feeds(model, count)

        def get_next(self) -> Feed | None:
            return next(self.feeds, None)

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "model.onnx")
        onnx.save(network.model, source)
        calibrater = PercentileCalibrater(source, augmented_model_path=str(Path(folder, "augmented.onnx")))
        calibrater.select_tensors_to_calibrate = lambda _model: (tensors, known)
        calibrater.augment_graph()
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1  # as ours; threads that spin would count as its work
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # as it sets by itself
        calibrater.infer_session = ort.InferenceSession(
            calibrater.augmented_model_path, options, providers=["CPUExecutionProvider"]
        )
        calibrater.collect_data(Reader())
        calibrater.compute_data()


def child(kind: str, path: Path, count: int) -> None:
    """Run one measurement and print it."""
    start = time.process_time()
    {"ours": ours, "onnxruntime": theirs}[kind](path, count)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"kind": kind, "samples": count, "cpu_s": seconds, "peak_mib": peak}))


def measure(kind: str, path: Path, count: int) -> dict[str, Any]:
    """Run one measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.calibration", "--child", kind, str(path), str(count)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def marginal_cost(rows: Sequence[dict[str, Any]], kind: str, counts: Sequence[int]) -> float:
    """Return the processor time of one more sample: start-up is not counted, on either side."""
    few, many = (next(row["cpu_s"] for row in rows if (row["kind"], row["samples"]) == (kind, n)) for n in counts)
    return float(many - few) / (counts[1] - counts[0])


def main(arguments: Sequence[str]) -> None:
    """Measure, print a table, write JSON."""
    if arguments[:1] == ["--child"]:
        child(arguments[1], Path(arguments[2]), int(arguments[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", choices=sorted(MODELS))
    parser.add_argument("--samples", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--reference", type=int, nargs=2, default=[16, 48], help="samples for both calibrators")
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        onnx.save(MODELS[options.model](), path)
        runs = [("ours", count) for count in options.samples]
        runs += [(kind, count) for count in options.reference for kind in ("ours", "onnxruntime")]
        print(f"{'calibrator':<14}{'samples':>8}{'CPU s':>10}{'peak MiB':>10}")
        for kind, count in runs:
            row = measure(kind, path, count)
            rows.append(row)
            print(f"{kind:<14}{count:>8}{row['cpu_s']:>10.2f}{row['peak_mib']:>10.0f}", flush=True)
    marginal = {kind: marginal_cost(rows, kind, options.reference) for kind in ("ours", "onnxruntime")}
    ratio = marginal["onnxruntime"] / marginal["ours"]
    shown = ", ".join(f"{kind} {seconds:.3f}" for kind, seconds in marginal.items())
    print(f"CPU s for one more sample: {shown}; {ratio:.2f} times")
    if options.output is not None:
        found = {"model": options.model, "rows": rows, "cpu_s_per_further_sample": marginal, "ratio": ratio}
        options.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
