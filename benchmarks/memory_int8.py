"""Memory that compiled models need while they run: quantized ones beside float ones.

    python -m benchmarks.memory_int8 --models ../shared/models --target host intel/sapphire-rapids

Planned: what the compiled code allocates for values between kernels, results included. Resident: how much the largest
resident set of a process grows from before the library is loaded to after some runs, weights and all, one thread. It
is measured for targets that this machine is; what is planned is known without running.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from benchmarks.latency_int8 import FILES, MADE, OPTIONS, both, write_library

RUNS = 3
STATUS = Path("/proc/self/status")


def main(arguments: Sequence[str]) -> None:
    """Print a row for each model and target, and geometric means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder with the models that are files")
    parser.add_argument("--target", nargs="+", default=["host"])
    parser.add_argument("--only", nargs="*", default=[*FILES, *MADE], choices=[*FILES, *MADE])
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args(arguments)
    rows: dict[str, dict[str, dict[str, float]]] = {tag: {} for tag in chosen.target}
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        for name in chosen.only:
            sources = both(name, chosen.models, Path(folder))
            for tag, found in rows.items():
                found[name] = compared(sources, tag, Path(folder))
                print(tag, name, json.dumps(found[name]), flush=True)
    for tag, found in rows.items():
        for figure in ("planned", "resident"):
            ratios = [row[figure] for row in found.values() if figure in row]
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                print(f"{tag}: {figure}, int8 / float: geometric mean {mean:.3f}, most {max(ratios)}")
    if chosen.output:
        chosen.output.write_text(json.dumps(rows, indent=2, sort_keys=True) + "\n")


def compared(sources: Mapping[str, onnx.ModelProto], tag: str, folder: Path) -> dict[str, float]:
    """Return what both kinds of a model need, in bytes, and the ratios."""
    from forge_pipeline.target import Target
    from forge_pipeline.target.description import why_not_here

    figures = {"planned": {kind: planned(source, tag) for kind, source in sources.items()}}
    if why_not_here(Target.from_tag(tag)) is None:
        figures["resident"] = {}
        for kind, source in sources.items():
            write_library(folder / kind, source, tag)
            figures["resident"][kind] = resident(folder / kind)
    row: dict[str, float] = {}
    for figure, values in figures.items():
        row.update({f"{figure}, {kind}": value for kind, value in values.items()})
        row[figure] = round(values["int8"] / max(1, values["float"]), 3)
    return row


def resident(library: Path) -> int:
    """Return how many bytes a process of its own grows by, that loads and runs the library."""
    command = [sys.executable, "-m", "benchmarks.memory_int8", "--measure", str(library)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def observed(library: Path) -> int:
    """Load and run a library in this process, and return how many bytes it grew by."""
    from forge_runtime.engine import Engine
    from forge_runtime.library import libforge

    libforge()  # the runtime's own memory is there before
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
    """Return the bytes that values between kernels take, for a batch of one, results included."""
    import tvm

    from forge_pipeline.codegen.backend import planned as with_memory
    from forge_pipeline.codegen.lowering import lower
    from forge_pipeline.codegen.memory.planner import allocated
    from forge_pipeline.codegen.memory.weight_section import separate
    from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
    from forge_pipeline.target import Target

    target = replace(Target.from_tag(tag), cores=2)
    lowered = lower(import_model(prepare(model)), target, OPTIONS)
    with target.tvm(), tvm.transform.PassContext(opt_level=3, config=dict(lowered.pass_config)):
        module = with_memory(separate(lowered.module).module, target)
    return allocated(module[lowered.sized])


def _kib(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(observed(Path(sys.argv[2])))
        sys.exit(0)
    main(sys.argv[1:])
