"""What each quantizer makes of a float file, each run by its own runtime: time and accuracy, ours and ONNX Runtime's.

    python -m benchmarks.own_quantizers --method static --threads 1 FOLDER/*.onnx     # or dynamic, weights

Ours is `forge-pipeline run quantize=METHOD` for this machine, with nothing else set. ONNX Runtime gets the file of
`quantize_static` behind `quant_pre_process` (QDQ, bytes, weights by channel, the same samples), of `quantize_dynamic`
with signed weights, or of its MatMulNBits quantizer (four bits, blocks of 32, accuracy level 4), and, once more, the
float file. They take turns (`benchmarks.turns`). Samples are random numbers, masks are ones, words are of a thousand:
eight calibrate, two others say how accurate each is (SQNR in dB against ONNX Runtime's run of the float file). Sizes of
the files are fixed, their weights may be random. Ratios are of least times.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.turns import Contestant, compare, real_inputs
from forge_pipeline.evaluation.noise import Noise

CALIBRATING, SAMPLES = 8, 10
WORDS = 1000
Feed = dict[str, np.ndarray]


def main(arguments: Sequence[str]) -> int:
    """Measure, print a table as Markdown, and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--method", choices=["static", "dynamic", "weights"], default="static")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=8, help="at least; small models have more")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    rows: dict[str, dict[str, Any]] = {}
    for path in chosen.models:
        with tempfile.TemporaryDirectory(prefix="own-quantizers-") as folder:
            rows[path.stem] = measure(path, chosen.method, Path(folder), chosen.threads, chosen.runs)
        print(path.stem, json.dumps(rows[path.stem]), file=sys.stderr, flush=True)
    print(table(rows))
    if chosen.json:
        chosen.json.write_text(json.dumps({"method": chosen.method, "threads": chosen.threads, "rows": rows}, indent=2))
    return 0


def measure(path: Path, method: str, folder: Path, threads: int, runs: int) -> dict[str, Any]:
    """Return least milliseconds, decibels, and why a quantizer or a runtime failed, by contestant."""
    feeds = list(samples(path))
    failed, files = {}, {"float": Contestant(runtime="onnxruntime", model=path)}
    for name, make in (("ours", ours), ("its own", its_own)):
        try:
            runtime = "ours" if name == "ours" else "onnxruntime"
            files[name] = Contestant(runtime=runtime, model=make(path, method, feeds, folder))
        except Exception as error:  # noqa: BLE001 - whatever a quantizer raises is its reason
            failed[name] = str(error)[:200]
    found = compare(files, feeds[CALIBRATING], threads=threads, runs=runs)
    wanted = outputs(files["float"], feeds)
    decibels = {
        name: round(sqnr(wanted, outputs(file, feeds)), 1)
        for name, file in files.items()
        if name != "float" and name not in found.failed
    }
    return {"ms": found.least(), "db": decibels, "failed": {**failed, **found.failed}}


def samples(path: Path) -> Iterator[Feed]:
    """Yield made-up inputs for a model of fixed sizes."""
    random = np.random.default_rng(0)
    values = real_inputs(onnx.load(path, load_external_data=False))
    for _ in range(SAMPLES):
        feed: Feed = {}
        for value in values:
            tensor = value.type.tensor_type
            shape = [dim.dim_value or 1 for dim in tensor.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            if dtype.kind == "f":
                feed[value.name] = random.standard_normal(shape).astype(dtype)
            elif "mask" in value.name or dtype.kind == "b":
                feed[value.name] = np.ones(shape, dtype)
            else:
                feed[value.name] = random.integers(0, WORDS, shape).astype(dtype)
        yield feed


def ours(path: Path, method: str, feeds: Sequence[Feed], folder: Path) -> Path:
    """Return the library that the pipeline delivers. Raises RuntimeError with its words where it refuses."""
    data = folder / "samples"
    data.mkdir()
    for index, feed in enumerate(feeds):
        np.savez(data / f"{index:02}.npz", allow_pickle=False, **feed)
    command = [sys.executable, "-m", "forge_pipeline", "run", f"model.path={path.resolve()}", f"data.path={data}",
               f"data.calibration_samples={CALIBRATING}", f"quantize={method}", f"out={folder / 'out'}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-200:])
    return folder / "out" / "model_library.so"


def its_own(path: Path, method: str, feeds: Sequence[Feed], folder: Path) -> Path:
    """Return the file that ONNX Runtime's quantizer makes."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(feeds[:CALIBRATING])

        def get_next(self) -> Feed | None:
            return next(self.left, None)

    result, prepared = folder / "its_own.onnx", folder / "prepared.onnx"
    if method == "dynamic":
        quantize_dynamic(path, result, weight_type=QuantType.QInt8)
    elif method == "weights":
        quantizer = MatMulNBitsQuantizer(onnx.load(path), block_size=32, is_symmetric=True, accuracy_level=4)
        quantizer.process()
        quantizer.model.save_model_to_file(str(result))
    else:
        quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared), str(result), Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
    return result


def outputs(file: Contestant, feeds: Sequence[Feed]) -> list[np.ndarray]:
    """Return the first result for each of the samples that did not calibrate."""
    if file.runtime == "ours":
        from forge_runtime.engine import Engine

        engine = Engine(file.model)
        return [np.asarray(engine(**feed)[0]) for feed in feeds[CALIBRATING:]]
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file.model), providers=["CPUExecutionProvider"])
    return [session.run(None, feed)[0] for feed in feeds[CALIBRATING:]]


def sqnr(wanted: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    """Return decibels of signal over noise; that of zeros where shapes differ."""
    noise = Noise()
    for want, have in zip(wanted, found, strict=True):
        noise.update(want, have if have.shape == want.shape else np.zeros_like(want))
    return noise.sqnr_db or 0.0


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the results as Markdown, with the geometric means of the ratios."""
    lines = [["network", "ours, ms", "/ float", "/ its own", "dB", "its dB"], ["---", *["---:"] * 5]]
    ratios: dict[str, list[float]] = {"float": [], "its own": []}
    for name, row in sorted(rows.items()):
        times, cells = row["ms"], []
        for other, seen in ratios.items():
            known = "ours" in times and other in times
            if known:
                seen.append(times["ours"] / times[other])
            cells.append(f"{seen[-1]:.2f}" if known else "-")
        decibels = [f"{row['db'][side]:.1f}" if side in row["db"] else "-" for side in ("ours", "its own")]
        lines.append([name, f"{times['ours']:.3g}" if "ours" in times else "-", *cells, *decibels])
    means = [math.exp(statistics.fmean(map(math.log, seen))) if seen else math.nan for seen in ratios.values()]
    lines.append(["geometric mean", "", *(f"{mean:.2f}" for mean in means), "", ""])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
