"""Graph passes beside other simplifiers: nodes after, CPU time, and latency of the result in ONNX Runtime.

    python -m benchmarks.passes MODEL.onnx ... [--generated resnet50 bert_encoder ...] [--light]

CPU time is that of one process doing all models; latency is the median of runs that alternate between the results,
one thread, with ONNX Runtime's own optimisations on. ``--light`` adds the light models of the onnx package, whose
weights are ConstantOfShape nodes of up to 411 MB: the bound on what folding may add is raised for them, as the other
tools have none.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import onnxruntime
import yaml
from onnx import helper, numpy_helper

from benchmarks.models import MODELS
from forge_pipeline.config import bind
from forge_pipeline.ir import ONNXModule
from forge_pipeline.locate import conf_dir
from forge_pipeline.passes.contract import VerifySettings
from forge_pipeline.passes.verification.exact import exact_interpreter
from forge_pipeline.passes.verification.reference import generate_inputs
from forge_pipeline.stages.fold import Config, run

SETTINGS = VerifySettings(rtol=1e-5, atol=1e-6, samples=1, seed=0, dims={})
ROUNDS = 15
LIGHT_BYTES = 1 << 30


def ours(model: onnx.ModelProto, *, verify: bool, name: str = "full", max_bytes: int | None = None) -> onnx.ModelProto:
    """Return the model after conf/fold/NAME.yaml, with another bound on folding if one is given."""
    values = yaml.safe_load((conf_dir() / "fold" / f"{name}.yaml").read_text())
    if max_bytes is not None:
        (repeated,) = (entry["repeat"] for entry in values["passes"] if "repeat" in entry)
        (folding,) = (entry for entry in repeated if "fold-constants" in entry)
        folding["fold-constants"] = {"max_bytes": max_bytes}
    config = bind(Config, values if verify else values | {"verify": None}, where="fold")
    return run(config, ONNXModule(model)).output.mod


def _onnxsim(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxsim

    return onnxsim.simplify(model)[0]


def _onnxslim(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxslim

    return onnxslim.slim(model)


def _onnxoptimizer(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxoptimizer

    return onnxoptimizer.optimize(model, onnxoptimizer.get_fuse_and_elimination_passes())


Tool = Callable[[onnx.ModelProto], onnx.ModelProto]


def tools(max_bytes: int | None = None) -> dict[str, Tool]:
    """Return what is measured, by the name of its column."""
    return {
        "full": lambda model: ours(model, verify=False, max_bytes=max_bytes),
        "verified": lambda model: ours(model, verify=True),
        "fused": lambda model: ours(model, verify=False, name="fused", max_bytes=max_bytes),
        "onnxsim": _onnxsim,
        "onnxslim": _onnxslim,
        "onnxoptimizer": _onnxoptimizer,
    }


def _generated(name: str) -> onnx.ModelProto:
    return with_batchnorm(MODELS[name]())


def with_batchnorm(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model as a training framework exports it: a batch normalization behind every convolution."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    random = np.random.default_rng(0)
    filters = {tensor.name: tensor.dims[0] for tensor in made.graph.initializer if len(tensor.dims) == 4}
    nodes: list[onnx.NodeProto] = []
    for node in made.graph.node:
        nodes.append(node)
        if node.op_type != "Conv":
            continue
        target, size = node.output[0], filters[node.input[1]]
        node.output[0] = f"{target}_conv"
        statistics_of = {"scale": random.uniform(0.9, 1.1, size), "shift": random.normal(size=size) / 10}
        statistics_of |= {"mean": random.normal(size=size) / 10, "variance": random.uniform(0.9, 1.1, size)}
        for name, array in statistics_of.items():
            made.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), f"{target}_{name}"))
        inputs = [node.output[0], *(f"{target}_{name}" for name in statistics_of)]
        nodes.append(helper.make_node("BatchNormalization", inputs, [target]))
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del made.graph.node[:]
    made.graph.node.extend(copies)
    return made


def latencies(models: dict[str, onnx.ModelProto], inputs: dict[str, Any], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of a run of each model, measured in alternation."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    sessions = {
        name: onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        for name, model in models.items()
    }
    taken: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds):
        for name, session in sessions.items():
            started = time.perf_counter()
            session.run(None, inputs)
            taken[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) * 1e3 for name, values in taken.items()}


def measure(model: onnx.ModelProto, using: dict[str, Tool], *, rounds: int) -> dict[str, tuple[int, float, float]]:
    """Return nodes after, CPU seconds and latency in milliseconds for each tool; latency is 0 without ``rounds``."""
    done: dict[str, onnx.ModelProto] = {"before": model}
    seconds = {"before": 0.0}
    for tool, function in using.items():
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        started = time.process_time()
        done[tool] = function(copy)
        seconds[tool] = time.process_time() - started
    milliseconds = dict.fromkeys(done, 0.0)
    if rounds:
        fed = generate_inputs(model, exact_interpreter(model), SETTINGS).feeds[0]
        run_in = {name: done[name] for name in done if name not in ("verified", "onnxoptimizer")}
        milliseconds |= latencies(run_in, {name: np.asarray(array) for name, array in fed.items()}, rounds)
    return {tool: (len(done[tool].graph.node), seconds[tool], milliseconds[tool]) for tool in done}


def main() -> None:
    """Measure what the command line names and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--generated", nargs="*", default=[], choices=sorted(MODELS))
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of latency; 0: none is measured")
    options = parser.parse_args()
    folder = Path(onnx.backend.test.__file__).parent / "data" / "light"
    light = sorted(folder.glob("*.onnx")) if options.light else []
    print(
        "| model | before | full | fused | onnxsim | onnxslim | onnxoptimizer "
        "| CPU s: full, verified, fused, sim, slim, optimizer | latency ms: before, full, fused, sim, slim |\n"
        "|---|---:|---:|---:|---:|---:|---:|---|---|"
    )
    for name, load in (
        *((path.stem, partial(onnx.load, path)) for path in (*options.models, *light)),
        *((name, partial(_generated, name)) for name in options.generate_inputs),
    ):
        found = measure(load(), tools(LIGHT_BYTES if name.startswith("light_") else None), rounds=options.rounds)
        counts = [str(found[tool][0]) for tool in found if tool != "verified"]
        seconds = ", ".join(f"{found[tool][1]:.2f}" for tool in found if tool != "before")
        latency = ", ".join(f"{took:.2f}" for _, _, took in found.values() if took)
        print(f"| {' | '.join([name, *counts, seconds, latency])} |", flush=True)


if __name__ == "__main__":
    main()
