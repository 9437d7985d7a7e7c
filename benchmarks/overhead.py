"""What a call of Engine costs beyond the same call by forge-run: a model of one kernel that takes 100 nanoseconds.

CPU time of a call, the least of many batches; Engine and forge-run take turns. With ``--other FOLDER``, a second tree
of the project, its Engine takes turns with them.

    python -m benchmarks.overhead
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENGINE = """
import sys, time
import numpy as np
from forge_runtime import Engine
engine = Engine(sys.argv[1], threads=1)
arrays = [np.zeros(tensor.shape, tensor.dtype) for tensor in engine.inputs]
best = 1.0
for _ in range(200):
    start = time.process_time_ns()
    for _ in range(500):
        engine(*arrays)
    best = min(best, (time.process_time_ns() - start) / 500 / 1e9)
print(best)
"""


def library(inputs: int) -> bytes:
    """Return the library of a sum of arrays of 8 elements, or of one's opposite."""
    from onnx import TensorProto, helper

    from forge_pipeline.codegen.build import build
    from forge_pipeline.codegen.options import Options
    from forge_pipeline.target import Target

    names = [f"x{index}" for index in range(inputs)]
    node = helper.make_node("Neg" if inputs == 1 else "Sum", names, ["y"])
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in (*names, "y")]
    graph = helper.make_graph([node], "tiny", ports[:-1], ports[-1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    options = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
    return bytes(build(model, Target.from_tag("host"), options).to_bytes())


def engine(path: Path, tree: Path) -> float:
    """Return the seconds of a call."""
    command = [sys.executable, "-c", ENGINE, str(path)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, cwd=tree).stdout)


def native(path: Path) -> float:
    """Return the seconds of a run, of CPU time."""
    command: list[str | Path] = [
        ROOT / "runtime" / "out" / os.uname().machine / "forge-run",
        path,
        "--runs",
        "200000",
        "--threads",
        "1",
    ]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"CPU ([\d.]+) ms", said.stdout)
    assert found, said.stdout
    return float(found[1]) / 1e3


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--other", type=Path, help="another tree of the project")
    given = parser.parse_args(arguments)
    trees = {"Engine": ROOT, **({"other Engine": given.other.resolve()} if given.other else {})}
    with tempfile.TemporaryDirectory() as folder:
        for inputs in (1, 2, 4):
            path = Path(folder) / f"{inputs}.so"
            path.write_bytes(library(inputs))
            least: dict[str, float] = {}
            for _ in range(given.turns):
                for name, tree in trees.items():
                    least[name] = min(least.get(name, 1.0), engine(path, tree))
                least["native"] = min(least.get("native", 1.0), native(path))
            for name in trees:
                above = least[name] - least["native"]
                found = f"{least[name] * 1e6:.2f} us, {above * 1e6:.2f} above native"
                print(f"{inputs} inputs: {name} {found}")


if __name__ == "__main__":
    main(sys.argv[1:])
