"""Accuracy of the quantized models beside ONNX Runtime's `quantize_static`, on the same samples.

    python -m benchmarks.accuracy --models MODELS --eval SAMPLES --output accuracy.json
    python -m benchmarks.accuracy --draws 5      # other calibration samples each time: mean and spread

Labelled models are measured by top-1, all of them by the SQNR of their outputs (in front of a final softmax). ONNX
Runtime: MinMax, per channel, QDQ, uint8 activations and int8 weights. Models without data are fed smooth noise.

Both run with QuantizeLinear and DequantizeLinear as they are written. ONNX Runtime's fused kernels compute something
else where they saturate: without VNNI, 8-bit weights leave it 10 % of kws.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import math
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml

from forge_pipeline.config import bind
from forge_pipeline.data import Dataset, Feed, Preparation
from forge_pipeline.data.fitting import InputSpec, input_specs
from forge_pipeline.frontends import Source
from forge_pipeline.ir import ONNXModule
from forge_pipeline.locate import conf_dir
from forge_pipeline.quantization.accuracy.evaluator import Evaluator
from forge_pipeline.quantization.build import quantize_statically
from forge_pipeline.quantization.calibration.observe import calibrate
from forge_pipeline.quantization.calibration.probes import Probe
from forge_pipeline.quantization.calibration.ranges import Ranges
from forge_pipeline.quantization.network import Network, prepare
from forge_pipeline.quantization.settings import Config
from forge_pipeline.stages import fold, load

ROOT = Path(__file__).parent.parent
DIGITS = ROOT / "examples" / "digits"
KWS_SCALE = 0.5847029089927673
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "minmax, no tools": {"calib_method": "minmax", "improve": []},
    "per tensor": {"per_channel": False},
    "7-bit weights": {"reduce_range": True},
    "dynamic": {"method": "dynamic"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, and its samples if there are any; ``scale`` and ``offset`` turn stored values into inputs."""

    name: str
    model: Path
    data: Path | None = None
    evaluation: Path | None = None
    scale: float = 1.0
    offset: float = 0.0


def cases(models: Path, data: Path) -> tuple[Case, ...]:
    """Return the cases, the bundled model first."""
    return (
        Case(
            name="digits", model=DIGITS / "digits.onnx", data=DIGITS / "calibration.npz",
            evaluation=DIGITS / "evaluation.npz",
        ),
        Case(name="resnet8", model=models / "mlperf_tiny_resnet8/resnet8.onnx", data=data / "cifar10_1200.npz"),
        Case(
            name="kws", model=models / "mlperf_tiny_kws_dscnn/kws.onnx", data=data / "kws_1000.npz",
            scale=KWS_SCALE, offset=-83 * KWS_SCALE,
        ),
        Case(name="mnist-8", model=models / "mnist_cntk/mnist-8.onnx", data=data / "mnist_2000.npz"),
        Case(name="squeezenet", model=models / "squeezenet/squeezenet_fp32.onnx"),
        Case(name="yunet", model=models / "yunet/yunet_n_320_320.onnx"),
        Case(name="ultraface", model=models / "ultraface/rfb_320.onnx"),
    )  # fmt: skip


def folded(path: Path) -> ONNXModule:
    """Load and fold a model as the pipeline does by default."""
    model = load.run(bind(load.Config, _conf("load/default"), where="load"), Source(path)).output
    return fold.run(bind(fold.Config, _conf("fold/basic"), where="fold"), model).output  # type: ignore[no-any-return]


def samples(case: Case, specs: Sequence[InputSpec], draw: int | None = None) -> tuple[list[Probe], list[Probe]]:
    """Return what calibrates and what evaluates; ``draw``: half as many calibration samples, drawn by this seed."""
    if case.data is None:
        noise = [Probe.of(feed, None) for feed in smooth_noise(specs, 24)]
        return noise[:16], noise[16:]
    preparation = Preparation(
        calibration_samples=200 if draw is None else 100,
        shuffle=draw is not None,
        seed=draw or 0,
        scale=case.scale,
        offset=case.offset,
        image=None,
    )
    data = Dataset.open(str(case.data), None if case.evaluation is None else str(case.evaluation))
    parts = (data.samples(preparation, specs, part) for part in ("calibration", "evaluation"))
    return tuple(_labelled(part) for part in parts)  # type: ignore[return-value]


def _labelled(part: Any) -> list[Probe]:
    labels = part.labels()
    return [Probe.of(feed, labels[i : i + 1]) for i, feed in enumerate(part)]


def smooth_noise(specs: Sequence[InputSpec], count: int) -> Iterator[Feed]:
    """Yield images of 0..255 whose spectrum falls as a photograph's does."""
    draw = np.random.default_rng(0)
    for _ in range(count):
        feed = {}
        for spec in specs:
            shape = [size if isinstance(size, int) else 1 for size in spec.shape]
            noise = np.fft.rfft2(draw.standard_normal(shape))
            rows, columns = np.fft.fftfreq(shape[-2])[:, None], np.fft.rfftfreq(shape[-1])[None]
            image = np.fft.irfft2(noise / np.maximum(np.hypot(rows, columns), 1 / max(shape)), s=shape[-2:])
            image = (image - image.min()) / (image.max() - image.min())
            feed[spec.name] = (255 * image).astype(np.float32)
        yield feed


def by_onnx_runtime(model: ONNXModule, feeds: Sequence[Feed], *, reduce_range: bool = False) -> onnx.ModelProto:
    """Quantize with ONNX Runtime on the same samples."""
    from onnxruntime import quantization as ort

    class Reader(ort.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.feeds = iter(feeds)

        def get_next(self) -> Feed | None:
            return next(self.feeds, None)

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "float.onnx"), Path(folder, "integer.onnx")
        onnx.save(prepare(model.mod), source)
        logging.disable(logging.WARNING)
        with contextlib.redirect_stdout(io.StringIO()):
            ort.quantize_static(
                source, target, Reader(), quant_format=ort.QuantFormat.QDQ, per_channel=True, reduce_range=reduce_range,
                activation_type=ort.QuantType.QUInt8, weight_type=ort.QuantType.QInt8,
                calibrate_method=ort.CalibrationMethod.MinMax,
            )  # fmt: skip
        logging.disable(logging.NOTSET)
        return onnx.load(target)


def measure(case: Case) -> dict[str, Any]:
    """Return top-1 of the float model, and the loss and SQNR of every quantized one."""
    model = folded(case.model)
    calibration, evaluation = samples(case, input_specs(model.mod))
    feeds = [probe.feed for probe in calibration]
    ranges: Ranges = calibrate(model, feeds, total=len(feeds), histogram_values=16384)
    evaluator = Evaluator.of(Network(prepare(model.mod)), evaluation)
    rows: dict[str, Any] = {"float": {"top1": _top1(evaluator)}}
    for name, changes in SETTINGS.items():
        config = bind(Config, {**_conf("quantize/static"), "reduce_range": False, **changes}, where="quantize")
        result, report = quantize_statically(config, model, ranges, calibration)
        rows[name] = _row(evaluator, result.mod) | {
            key: report[key] for key in ("improvements", "calib_method") if key in report
        }
    rows["onnxruntime"] = _row(evaluator, by_onnx_runtime(model, feeds))
    return {"samples": len(evaluation), "calibration": len(calibration), "results": rows}


def compare_draws(case: Case, draws: int) -> list[dict[str, Any]]:
    """Quantize with other calibration samples each time; return a row for each draw and width of weights."""
    model = folded(case.model)
    rows = []
    for draw in range(draws):
        calibration, evaluation = samples(case, input_specs(model.mod), draw)
        feeds = [probe.feed for probe in calibration]
        ranges = calibrate(model, feeds, total=len(feeds), histogram_values=16384)
        evaluator = Evaluator.of(Network(prepare(model.mod)), evaluation)
        exact = _right(evaluator, prepare(model.mod))
        for bits in (8, 7):
            changes = {"reduce_range": bits == 7}
            config = bind(Config, {**_conf("quantize/static"), **changes}, where="quantize")
            probes = [replace(probe, labels=None) for probe in calibration]
            ours = _right(evaluator, quantize_statically(config, model, ranges, probes)[0].mod)
            theirs = _right(evaluator, by_onnx_runtime(model, feeds, reduce_range=bits == 7))
            rows.append(
                {
                    "draw": draw, "bits": bits,
                    "ours": 100.0 * float(exact.mean() - ours.mean()),
                    "onnxruntime": 100.0 * float(exact.mean() - theirs.mean()),
                    "only_ours_right": int((ours & ~theirs).sum()), "only_theirs_right": int((theirs & ~ours).sum()),
                }
            )  # fmt: skip
    return rows


def worse_by_chance(wins: int, losses: int) -> float:
    """Return the probability of at least ``losses`` in a fair draw of all that differ: McNemar's exact test."""
    count = wins + losses
    return sum(math.comb(count, k) for k in range(losses, count + 1)) / 2.0**count


def show_draws(case: Case, rows: Sequence[dict[str, Any]]) -> None:
    """Print mean and spread of the loss, and how often chance alone makes ours worse by as much as in any draw."""
    for bits in (8, 7):
        chosen = [row for row in rows if row["bits"] == bits]
        shown = []
        for side in ("ours", "onnxruntime"):
            losses = [row[side] for row in chosen]
            shown.append(
                f"{statistics.mean(losses):7.2f} +- {statistics.pstdev(losses):4.2f} (most {max(losses):5.2f})"
            )
        least = min(worse_by_chance(row["only_ours_right"], row["only_theirs_right"]) for row in chosen)
        print(
            f"{case.name:<10}{bits} bits, {len(chosen)} draws: loss ours {shown[0]}, ORT {shown[1]}, p >= {least:.2f}"
        )


def _right(evaluator: Evaluator, model: onnx.ModelProto) -> Any:
    """True for each evaluation sample that the model classifies as labelled."""
    name = evaluator.values[0]
    found = evaluator.run(model)
    hits = [
        values[name].argmax(axis=1) == probe.labels
        for probe, values in zip(evaluator.probes, found, strict=True)
        if probe.labels is not None
    ]
    return np.concatenate(hits)


def _row(evaluator: Evaluator, model: onnx.ModelProto) -> dict[str, Any]:
    row: dict[str, Any] = {"sqnr_db": round(evaluator.sqnr(model), 2)}
    if evaluator.probes[0].labels is not None:
        agreement = replace(evaluator, probes=tuple(replace(probe, labels=None) for probe in evaluator.probes))
        drop, other = evaluator.drop(model), agreement.drop(model)
        row |= {"drop": round(drop or 0.0, 3), "answers_changed": round(other or 0.0, 3)}
    return row


def _top1(evaluator: Evaluator) -> float | None:
    hits = [
        float(answer[evaluator.values[0]].argmax(axis=1)[0] == probe.labels[0])
        for probe, answer in zip(evaluator.probes, evaluator.answers, strict=True)
        if probe.labels is not None
    ]
    return round(100 * sum(hits) / len(hits), 3) if hits else None


def _conf(name: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((conf_dir() / f"{name}.yaml").read_text())
    return values


def main(arguments: Sequence[str]) -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=ROOT.parent / "shared" / "models")
    parser.add_argument("--eval", type=Path, default=ROOT.parent / "shared" / "eval")
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--draws", type=int, default=0, help="of calibration samples, for labelled models alone")
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {}
    if options.draws:
        for case in cases(options.models, options.eval):
            if case.data is not None and case.model.is_file() and case.name in (options.only or [case.name]):
                results[case.name] = compare_draws(case, options.draws)
                show_draws(case, results[case.name])
        _write(options.output, results)
        return
    print(f"{'model':<12}{'setting':<20}{'top-1':>8}{'drop':>8}{'changed':>9}{'SQNR dB':>9}")
    for case in cases(options.models, options.eval):
        if options.only and case.name not in options.only:
            continue
        if not case.model.is_file():
            print(f"{case.name:<12}not here: {case.model.name}")
            continue
        results[case.name] = found = measure(case)
        top1 = found["results"]["float"]["top1"]
        for setting, row in found["results"].items():
            if "sqnr_db" not in row:
                continue
            shown = "".join(
                f"{value:>{width}.2f}" if value is not None else " " * width
                for value, width in (
                    (None if top1 is None else top1 - row["drop"], 8), (row.get("drop"), 8),
                    (row.get("answers_changed"), 9), (row["sqnr_db"], 9),
                )
            )  # fmt: skip
            print(f"{case.name:<12}{setting:<20}{shown}", flush=True)
    _write(options.output, results)


def _write(path: Path | None, results: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
