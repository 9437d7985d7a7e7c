"""A decoder's token: its caches kept by the library, passed by the caller, and in ONNX Runtime with bound arrays.

The model is a step of one token behind any number, as `benchmarks.real_sizes` makes them (`gpt2_step`, `llama_step`).
One thread each, in turns, in one process; least milliseconds. ONNX Runtime has its best form: inputs and outputs bound
to arrays that are there, none allocated or handed over in a run. It still writes each cache anew, a token longer. Of
ours, a token is a call of Engine; where states are kept, the length is put back before each.

    python -m benchmarks.real_sizes FOLDER
    python -m benchmarks.decoder FOLDER/llama_step.onnx FOLDER/gpt2_step.onnx --past 128 1024 2048 --json decoder.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.latency import folded
from forge_runtime.engine import Engine

MOST = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Least milliseconds of a token behind ``past`` others, and the largest difference of kept from ONNX Runtime's."""

    model: str
    past: int
    kept: float
    passed: float
    onnxruntime: float
    error: float


def library(path: Path, target: str, *, keeps: bool) -> bytes:
    """Return the compiled model, with states kept or not."""
    from forge_pipeline.codegen.build import build
    from forge_pipeline.codegen.options import Options
    from forge_pipeline.target import Target

    options = Options(
        generator="auto", opt_level=3, float16=False, channel_layout=None,
        state="auto" if keeps else None, state_max=MOST,
    )  # fmt: skip
    return build(folded(path).mod, Target.from_tag(target), options).to_bytes()


def bound(model: onnx.ModelProto, given: Mapping[str, np.ndarray], past: int) -> Callable[[], list[np.ndarray]]:
    """Return a run of ONNX Runtime on arrays that are bound once."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding, outputs = session.io_binding(), []
    for name, array in given.items():
        binding.bind_cpu_input(name, array)
    for port, first in zip(session.get_outputs(), session.run(None, dict(given)), strict=True):
        outputs.append(onnxruntime.OrtValue.ortvalue_from_shape_and_type(first.shape, first.dtype))
        binding.bind_ortvalue_output(port.name, outputs[-1])

    def run() -> list[np.ndarray]:
        session.run_with_iobinding(binding)
        return [outputs[0].numpy()]

    return run


def in_turns(runs: Sequence[Callable[[], Any]], turns: int) -> list[float]:
    """Return the least milliseconds of each."""
    least = [float("inf")] * len(runs)
    for _ in range(turns):
        for index, run in enumerate(runs):
            for _ in range(3):
                begun = time.perf_counter()
                run()
                least[index] = min(least[index], 1e3 * (time.perf_counter() - begun))
    return least


def measure(path: Path, pasts: Sequence[int], target: str, turns: int) -> list[Row]:
    """Return a row for each number of tokens before."""
    model = onnx.load(path)
    keeping = Engine(library(path, target, keeps=True), threads=1)
    passing = Engine(library(path, target, keeps=False), threads=1)
    (port,) = keeping.inputs
    random = np.random.default_rng(0)
    tokens = random.integers(0, 100, (max(pasts) + 1, 1, 1)).astype(np.int64)
    rows, caches = [], [value for value in model.graph.input if value.name != port.name]
    for past in sorted(pasts):
        while keeping.length < past:
            keeping(tokens[keeping.length])
        held = {port.name: tokens[past]}
        for value in caches:
            shape = [dim.dim_value or past for dim in value.type.tensor_type.shape.dim]
            held[value.name] = np.zeros(shape, np.float32)
        given = _filled(passing, held, tokens[: past + 1])

        def token(past: int = past) -> list[np.ndarray]:
            keeping.truncate(past)
            return keeping(tokens[past])

        def passed(given: Mapping[str, np.ndarray] = given) -> list[np.ndarray]:
            return passing(**given)

        theirs = bound(model, given, past)
        wanted, found = theirs()[0], token()[0]
        error = float(np.abs(wanted - found).max() / np.abs(wanted).max())
        kept, handed, reference = in_turns([token, passed, theirs], turns)
        rows.append(Row(model=path.stem, past=past, kept=kept, passed=handed, onnxruntime=reference, error=error))
        print(_line(rows[-1]), flush=True)
    return rows


def _filled(engine: Engine, held: Mapping[str, np.ndarray], tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Return the inputs of the last of ``tokens``, whose caches are those of the ones before."""
    names = [name for name in held if held[name].dtype == np.float32]
    now = {name: held[name][:, :, :0] for name in names}
    port = next(name for name in held if name not in names)
    for token in tokens[:-1]:
        _, *caches = engine(**{port: token, **now})
        now = dict(zip(names, caches, strict=True))
    return {port: tokens[-1], **now}


def _line(row: Row) -> str:
    ratios = f"{row.kept / row.passed:.2f} | {row.kept / row.onnxruntime:.2f}"
    times = f"{row.kept:.2f} | {row.passed:.2f} | {row.onnxruntime:.2f}"
    return f"| {row.model} | {row.past} | {times} | {ratios} | {row.error:.1e} |"


def main(arguments: Sequence[str]) -> int:
    """Measure, print the table, and write it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--past", nargs="+", type=int, default=[128, 1024, 2048])
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--target", default="host")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    print("| model | past | kept, ms | passed, ms | ONNX Runtime, ms | kept / passed | kept / ONNX Runtime | error |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    rows = [row for path in chosen.models for row in measure(path, chosen.past, chosen.target, chosen.turns)]
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
