"""Runtimes as processes that take turns: how latencies are compared on a machine that is never quite alone.

One process for each contestant, and only one of them runs at a time: ONNX Runtime's threads go on spinning after a run
and would take the core from whoever is measured next. A turn is one run of a large model and several of a small one;
what else the machine does falls on all of them alike.
"""

from __future__ import annotations

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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import llama_cpp
from benchmarks.others import OTHERS

EXTENTS = {"length": 58, "height": 320, "width": 320}
"""What symbolic extents are measured with; those not listed are 1."""

TURN = 0.01
"""Seconds that a turn lasts at least, so that small models run with warm caches, as they do in a program's loop."""
MOST_PER_TURN = 50
LEAST_TURNS = 10
PAUSE = 0.02
"""Seconds between turns, for the threads of the runtime before to fall asleep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A runtime (a name in RUNTIMES), and the file that it loads."""

    runtime: str
    model: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """By contestant: seconds of each run, turn by turn; the first output; why it could not run."""

    seconds: dict[str, list[list[float]]]
    outputs: dict[str, np.ndarray]
    failed: dict[str, str]

    @property
    def runs(self) -> int:
        """How many runs each has at least."""
        return min((sum(map(len, turns)) for turns in self.seconds.values()), default=0)

    def least(self) -> dict[str, float]:
        """Return the quickest run, in milliseconds."""
        return {name: 1e3 * min(map(min, turns)) for name, turns in self.seconds.items()}

    def median(self) -> dict[str, float]:
        """Return the median of all runs, in milliseconds."""
        return {name: 1e3 * statistics.median(itertools.chain(*turns)) for name, turns in self.seconds.items()}

    def ratios(self, ours: str) -> dict[str, float]:
        """Return ours / theirs for every other contestant: the median over the turns of the ratio of their medians."""
        medians = {name: [statistics.median(turn) for turn in turns] for name, turns in self.seconds.items()}
        return {
            name: statistics.median(a / b for a, b in zip(medians[ours], turns, strict=True))
            for name, turns in medians.items()
            if name != ours and ours in medians
        }


class CannotRunError(Exception):
    """A runtime's reason for not running a model."""


def compare(
    contestants: Mapping[str, Contestant], inputs: Mapping[str, np.ndarray], *, threads: int, runs: int
) -> Comparison:
    """Start the contestants, and let them take turns until each has ``runs`` runs at least."""
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        np.savez(folder / "inputs.npz", allow_pickle=False, **inputs)
        children: dict[str, subprocess.Popen[str]] = {}
        try:
            for name, contestant in contestants.items():
                try:
                    children[name] = _start(contestant, threads, folder / "inputs.npz", folder / f"{name}.npy")
                except CannotRunError as error:
                    failed[name] = str(error)
            seconds = _take_turns(children, runs)
        finally:
            for child in children.values():
                child.kill()
                child.communicate()
        outputs = {name: np.load(folder / f"{name}.npy") for name in children}
    return Comparison(seconds=seconds, outputs=outputs, failed=failed)


def _take_turns(children: Mapping[str, subprocess.Popen[str]], runs: int) -> dict[str, list[list[float]]]:
    """Return the seconds of each contestant's runs, turn by turn."""
    if not children:
        return {}
    quickest = min(min(_ask(child, 3)) for child in children.values())
    count = max(1, min(MOST_PER_TURN, math.ceil(TURN / quickest)))
    seconds: dict[str, list[list[float]]] = {name: [] for name in children}
    for _ in range(max(LEAST_TURNS, math.ceil(runs / count))):
        for name, child in children.items():
            time.sleep(PAUSE)
            warm_up = max(1, count // 5)  # brings back caches and threads
            seconds[name].append(_ask(child, warm_up + count)[warm_up:])
    return seconds


def _start(contestant: Contestant, threads: int, inputs: Path, output: Path) -> subprocess.Popen[str]:
    paths = [str(path) for path in (contestant.model, inputs, output)]
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.turns", contestant.runtime, str(threads), *paths],
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
    for value in real_inputs(model):
        tensor = value.type.tensor_type
        shape = [dim.dim_value or EXTENTS.get(dim.dim_param, 1) for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        is_float = np.issubdtype(dtype, np.floating)
        arrays[value.name] = random.standard_normal(shape).astype(dtype) if is_float else np.ones(shape, dtype)
    return arrays


def real_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that are no initializers."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in constants]


def _ours(model: Path, threads: int, given: dict[str, np.ndarray]) -> Callable[[], Any]:
    from forge_runtime.engine import Engine

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


def _openvino(model: Path, threads: int, given: dict[str, np.ndarray], *, hint: str = "f32") -> Callable[[], Any]:
    """Run in float32, or in what ``hint`` allows, what the model does not quantize; integers stay integers."""
    import openvino

    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(model),
        "CPU",
        {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": hint},
    )
    request = compiled.create_infer_request()
    return lambda: request.infer(given)[compiled.outputs[0]]


RUNTIMES: Mapping[str, Callable[..., Callable[[], Any]]] = {
    "ours": _ours,
    "ours_fixed": _ours,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "openvino_bf16": partial(_openvino, hint="bf16"),
    "openvino_f16": partial(_openvino, hint="f16"),
    "decoder": llama_cpp.ours,
    "llama.cpp": llama_cpp.llama_cpp,
    **{name: run for name, (_, run) in OTHERS.items()},
}


def serve(arguments: Sequence[str]) -> int:
    """Be one runtime: load, write one result, then for every line with a number n run n times and print seconds."""
    runtime, threads, model, inputs, output = arguments
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a runtime says of itself is no answer
    try:
        run = RUNTIMES[runtime](Path(model), int(threads), dict(np.load(inputs)))
        np.save(output, np.asarray(run()))
    except Exception as error:  # noqa: BLE001 - whatever a runtime raises is its reason
        print("cannot", type(error).__name__, " ".join(str(error).split())[:200], file=answers, flush=True)
        return 1
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        print(json.dumps(seconds), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
