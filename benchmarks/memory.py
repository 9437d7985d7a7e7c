"""The peak memory of every stage on a model of more than 2 GB, in multiples of its weights.

    python -m benchmarks.memory --mib 2400 --json memory.json

The model is made by writing random weights of little entropy, layer by layer, so that making it takes no memory. The
build runs as `forge-pipeline run` does, in a process of its own, and what is measured is the resident set of that
process and all that it starts, sampled every few milliseconds; pages that two of them share count twice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

WIDTH = 4096
MIB = 1 << 20
EVERY = 0.01  # seconds
DATA = "weights.bin"


def large_model(path: Path, mib: int, *, width: int = WIDTH) -> int:
    """Write an image model of Conv, Gemm (both ways round) and MatMul with ``mib`` MiB of weights; return their bytes.

    The weights are outside, in one file beside ``path``.
    """
    random = np.random.default_rng(0)
    nodes: list[NodeProto] = []
    tensors: list[TensorProto] = []
    total = 0
    with (path.parent / DATA).open("wb") as stream:

        def weight(*shape: int, fan_in: int) -> str:
            nonlocal total
            name = f"w{len(tensors)}"
            scale = np.float32(1.7 / fan_in**0.5)
            content = random.integers(-7, 8, shape, np.int8).astype(np.float32) * scale / np.float32(4)
            stream.write(bytes(-stream.tell() % 4096))
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": DATA, "offset": str(stream.tell()), "length": str(content.nbytes)}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=value)
            stream.write(content.data)
            tensors.append(tensor)
            total += content.nbytes
            return name

        def then(op: str, *inputs: str, **attributes: object) -> str:
            nodes.append(helper.make_node(op, inputs, [f"y{len(nodes)}"], **attributes))
            return str(nodes[-1].output[0])

        channels = max(4, width // 16)
        value = then("Conv", "image", weight(channels, 3, 3, 3, fan_in=27), pads=[1, 1, 1, 1])
        value = then("Relu", value)
        value = then("Conv", value, weight(channels, channels, 3, 3, fan_in=9 * channels), pads=[1, 1, 1, 1])
        value = then("Relu", value)
        value = then("Flatten", then("GlobalAveragePool", value))
        value = then("MatMul", value, weight(channels, width, fan_in=channels))
        while total < mib * MIB:
            if len(tensors) % 2:
                value = then("Gemm", value, weight(width, width, fan_in=width), transB=1)
            else:
                value = then("MatMul", value, weight(width, width, fan_in=width))
            value = then("Relu", value)
        then("Softmax", then("MatMul", value, weight(width, 16, fan_in=width)))
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 8, 8])]
    outputs = [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, [1, 16])]
    graph = helper.make_graph(nodes, "large", inputs, outputs, tensors)
    model: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    path.write_bytes(model.SerializeToString(deterministic=True))
    return total


@dataclass(slots=True)
class Watch:
    """Samples the memory of a process and its descendants; ``peak`` is in bytes."""

    pid: int
    peak: int = 0
    _done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Sample until ``stop``."""
        while not self._done.wait(EVERY):
            self.peak = max(self.peak, resident(self.pid))

    def taken(self) -> int:
        """Return the peak since the last call."""
        peak, self.peak = self.peak, 0
        return peak

    def stop(self) -> None:
        """End ``run``."""
        self._done.set()


def resident(pid: int) -> int:
    """Return the bytes of memory that a process and its descendants have in use."""
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        try:
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            for task in Path(f"/proc/{one}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


@dataclass(frozen=True, slots=True)
class Seen:
    """One stage of a build: how much memory it took at its peak (bytes), and seconds."""

    stage: str
    peak: int
    seconds: float


def build(arguments: Sequence[str], folder: Path) -> list[Seen]:
    """Run `forge-pipeline run` with these arguments in ``folder``; return its stages. Raises CalledProcessError."""
    environment = {**os.environ, "FORGE_STORE": str(folder / "store")}
    command = [sys.executable, "-m", "forge_pipeline", "run", *arguments]
    seen, begun = [], time.perf_counter()
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as child:
        watch = Watch(child.pid)
        sampling = threading.Thread(target=watch.run)
        sampling.start()
        try:
            for line in child.stdout or ():  # a line at the end of each stage
                print(line, end="", flush=True)
                name = line.split()[0]
                seen.append(Seen(name, watch.taken(), time.perf_counter() - begun))
                begun = time.perf_counter()
        finally:
            child.wait()
            watch.stop()
            sampling.join()
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return seen


def main(arguments: Sequence[str]) -> int:
    """Make the model, build it, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=2400)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--folder", type=Path, help="keep the model and the store there, and use what is there")
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*", help="for `forge-pipeline run`")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        path = folder / "large.onnx"
        if path.exists():
            weights = (folder / DATA).stat().st_size
        else:
            weights = large_model(path, options.mib, width=options.width)
        rows = build([f"model.path={path}", *options.overrides], folder)
        print(f"\nweights {weights / 1e9:.2f} GB")
        for row in rows:
            print(f"{row.stage:10} {row.peak / 1e9:6.2f} GB  {row.peak / weights:5.2f} x  {row.seconds:6.1f} s")
    if options.json:
        found = {row.stage: {"peak": row.peak, "of_weights": row.peak / weights} for row in rows}
        options.json.write_text(json.dumps({"weights": weights, "stages": found}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
