"""Graph passes beside other simplifiers: nodes after, CPU time, and latency of the result in ONNX Runtime.

    python -m benchmarks.passes MODEL.onnx ... [--generated resnet50 encoder ...] [--markdown]

CPU time is that of one process doing all models, imports left out; latency is the median of runs that alternate
between the results, one thread, with ONNX Runtime's own optimisations on.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import yaml
from onnx import helper, numpy_helper

from benchmarks.models import MODELS
from forge_pipeline.config import bind
from forge_pipeline.ir import ONNXModule
from forge_pipeline.locate import conf_dir
from forge_pipeline.passes.execution import Interpreter
from forge_pipeline.passes.reference import generated
from forge_pipeline.passes.settings import VerifySettings
from forge_pipeline.stages.fold import Config, run

SETTINGS = VerifySettings(rtol=1e-5, atol=1e-6, samples=1, seed=0, dims={})
ROUNDS = 15


def ours(model: onnx.ModelProto, *, verify: bool) -> onnx.ModelProto:
    """Return the model after conf/fold/full.yaml."""
    values = yaml.safe_load((conf_dir() / "fold" / "full.yaml").read_text())
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


TOOLS: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "ours": lambda model: ours(model, verify=False),
    "ours, verified": lambda model: ours(model, verify=True),
    "onnxsim": _onnxsim,
    "onnxslim": _onnxslim,
    "onnxoptimizer": _onnxoptimizer,
}


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


def latencies(models: dict[str, onnx.ModelProto], inputs: dict[str, Any]) -> dict[str, float]:
    """Return the median milliseconds of a run of each model, measured in alternation."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    sessions = {
        name: onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        for name, model in models.items()
    }
    taken: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(ROUNDS):
        for name, session in sessions.items():
            started = time.perf_counter()
            session.run(None, inputs)
            taken[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) * 1e3 for name, values in taken.items()}


def measure(model: onnx.ModelProto, tools: Sequence[str]) -> dict[str, tuple[int, float, float]]:
    """Return nodes after, CPU seconds and latency in milliseconds for each tool that handles the model."""
    done: dict[str, onnx.ModelProto] = {"as it was": model}
    seconds = {"as it was": 0.0}
    for tool in tools:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        started = time.process_time()
        done[tool] = TOOLS[tool](copy)
        seconds[tool] = time.process_time() - started
    fed = generated(model, Interpreter(model), SETTINGS)[0]
    milliseconds = latencies(done, {name: np.asarray(array) for name, array in fed.items()})
    return {tool: (len(done[tool].graph.node), seconds[tool], milliseconds[tool]) for tool in done}


def main() -> None:
    """Measure what the command line names and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--generated", nargs="*", default=[], choices=sorted(MODELS))
    parser.add_argument("--tools", nargs="*", default=list(TOOLS), choices=list(TOOLS))
    options = parser.parse_args()
    print("| model | tool | nodes | CPU s | latency ms |\n|---|---|---:|---:|---:|")
    named = {path.stem: onnx.load(path) for path in options.models} | {
        name: with_batchnorm(MODELS[name]()) for name in options.generated
    }
    for name, model in named.items():
        for tool, (nodes, seconds, milliseconds) in measure(model, options.tools).items():
            print(f"| {name} | {tool} | {nodes} | {seconds:.2f} | {milliseconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
