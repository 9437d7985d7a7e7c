"""Memory that compiled models need while they run: quantized ones beside float ones.

    python -m benchmarks.memory_int8 --models ../shared/models --target host

Planned: what the compiled code allocates for values between kernels, results included. Resident: how much the largest
resident set of a process grows from before the library is loaded to after some runs, weights and all, one thread.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.accuracy import folded
from benchmarks.latency_int8 import FILES, MADE, prepare

RUNS = 3
STATUS = Path("/proc/self/status")


def main(arguments: Sequence[str]) -> None:
    """Print a row for each model, and geometric means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder with the models that are files")
    parser.add_argument("--target", default="host")
    parser.add_argument("--only", nargs="*", default=[*FILES, *MADE], choices=[*FILES, *MADE])
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args(arguments)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        for name in chosen.only:
            stem = Path(folder) / name
            prepare(name, chosen.models, chosen.target, Path(folder))
            sources = {"int8": onnx.load(f"{stem}.onnx"), "float": float_model(name, chosen.models, Path(folder))}
            rows[name] = {
                kind: {"planned": planned(source, chosen.target), "resident": resident(Path(f"{stem}.{kind}"))}
                for kind, source in sources.items()
            }
            for figure in ("planned", "resident"):
                rows[name][f"{figure}, int8 / float"] = round(
                    rows[name]["int8"][figure] / max(1, rows[name]["float"][figure]), 3
                )
            print(name, json.dumps(rows[name]), flush=True)
    for figure in ("planned", "resident"):
        ratios = [row[f"{figure}, int8 / float"] for row in rows.values()]
        print(f"{figure}, geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}, most {max(ratios)}")
    if chosen.output:
        chosen.output.write_text(json.dumps(rows, indent=2, sort_keys=True) + "\n")


def float_model(name: str, models: Path, folder: Path) -> onnx.ModelProto:
    """Return the model that was quantized."""
    model: onnx.ModelProto = folded(models / FILES[name] if name in FILES else folder / f"{name}.source.onnx").mod
    return model


def resident(library: Path) -> int:
    """Return how many bytes a process of its own grows by, that loads and runs the library."""
    command = [sys.executable, "-m", "benchmarks.memory_int8", "--measure", str(library)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def observed(library: Path) -> int:
    """Load and run a library in this process, and return how many bytes it grew by."""
    from forge_pipeline.runtime.engine import Engine
    from forge_pipeline.runtime.machine import _runtime

    _runtime()  # the runtime's own memory is there before
    before = _kib("VmHWM")
    engine = Engine(library, threads=1)
    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal([size if isinstance(size, int) else 1 for size in tensor.shape]).astype(np.float32)
        for tensor in engine.inputs
    ]
    for _ in range(RUNS):
        engine(*inputs)
    return (_kib("VmHWM") - before) << 10


def planned(model: onnx.ModelProto, tag: str) -> int:
    """Return the bytes of all blocks that values between kernels share, for a batch of one, results included."""
    import tvm
    from tvm import relax
    from tvm.relax.backend.cpu_generic import pipeline

    from forge_pipeline.codegen.importer import import_model
    from forge_pipeline.codegen.importer import prepare as prepared
    from forge_pipeline.codegen.lowering import pick_generator
    from forge_pipeline.codegen.options import Options
    from forge_pipeline.target import Target

    target = replace(Target.from_tag(tag), cores=2)
    options = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
    lowered = pick_generator(options, target)(import_model(prepared(model)), target, options)
    machine = target.tvm()
    with machine, tvm.transform.PassContext(opt_level=3, config=dict(lowered.pass_config)):
        passes = [*pipeline.dataflow_lower_passes(machine), relax.transform.StaticPlanBlockMemory()]
        module = tvm.transform.Sequential(passes)(lowered.module)
    sizes: list[int] = []

    def visit(expression: object) -> None:
        if isinstance(expression, relax.Call) and getattr(expression.op, "name", "") == "relax.memory.alloc_storage":
            sizes.append(math.prod(int(extent) for extent in expression.args[0].values))
        elif isinstance(expression, relax.Call) and getattr(expression.op, "name", "") == "relax.builtin.alloc_tensor":
            shape = math.prod(int(extent) for extent in expression.args[0].values)
            sizes.append(shape * np.dtype(str(expression.args[1].value)).itemsize)

    relax.analysis.post_order_visit(module[lowered.single or "main"].body, visit)
    return sum(sizes)


def _kib(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(observed(Path(sys.argv[2])))
        sys.exit(0)
    main(sys.argv[1:])
