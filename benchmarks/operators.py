"""Operators by themselves, over images as they come: what no convolution made, of open sizes and of known ones.

Each is a model of one operator over 1 x 32 x 64 x 64 numbers, 1 x 32 x 60 x 60 where no vector divides a row, or what
is named. Runtimes take turns (`benchmarks.turns`); a call from Python and half a MB of results are in both times.

    python -m benchmarks.operators --json operators.json
    python -m benchmarks.operators --only pool --threads 2
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.turns import RUNTIMES, Contestant, compare

OPSET = 21


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An operator with its attributes and constants, and the shape of the image that it reads."""

    operator: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: Sequence[np.ndarray] = ()
    shape: Sequence[int] = (1, 32, 64, 64)

    def model(self, *, is_open: bool) -> onnx.ModelProto:
        """Return the model: batch, height and width are open, or known."""
        names = ("batch", self.shape[1], "height", "width")
        weights = [numpy_helper.from_array(value, f"c{number}") for number, value in enumerate(self.constants)]
        node = helper.make_node(self.operator, ["x", *(weight.name for weight in weights)], ["y"], **self.attributes)
        shape = names if is_open and len(self.shape) == 4 else self.shape
        ports = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in (("x", shape), ("y", None))
        ]
        graph = helper.make_graph([node], "operator", ports[:1], ports[1:], weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def _pads(*widths: int) -> list[np.ndarray]:
    return [np.array(widths, np.int64)]


def _channels() -> list[np.ndarray]:
    return [np.ones(32, np.float32), np.zeros(32, np.float32)]


ODD = (1, 32, 60, 60)
AROUND = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
CASES: Mapping[str, Case] = {
    "max pool 3 x 3": Case(operator="MaxPool", attributes=AROUND),
    "max pool 3 x 3, stride 2": Case(operator="MaxPool", attributes={**AROUND, "strides": [2, 2]}),
    "max pool 9 x 9 of a map": Case(
        operator="MaxPool", attributes={"kernel_shape": [9, 9], "pads": [4] * 4}, shape=(1, 1, 240, 240)
    ),
    "average pool 3 x 3": Case(operator="AveragePool", attributes=AROUND),
    "pad, constant": Case(operator="Pad", constants=_pads(0, 0, 2, 2, 0, 0, 2, 2)),
    "pad, edge": Case(operator="Pad", attributes={"mode": "edge"}, constants=_pads(0, 0, 2, 2, 0, 0, 2, 2)),
    "pad, reflect": Case(operator="Pad", attributes={"mode": "reflect"}, constants=_pads(0, 0, 2, 2, 0, 0, 2, 2)),
    "pad, wrap": Case(operator="Pad", attributes={"mode": "wrap"}, constants=_pads(0, 0, 2, 2, 0, 0, 2, 2)),
    "global average": Case(operator="GlobalAveragePool"),
    "global maximum": Case(operator="GlobalMaxPool"),
    "sum of rows": Case(operator="ReduceSum", constants=_pads(3)),
    "sum of rows of 60": Case(operator="ReduceSum", constants=_pads(3), shape=ODD),
    "product of rows": Case(operator="ReduceProd", constants=_pads(3)),
    "mean of channels": Case(operator="ReduceMean", constants=_pads(1)),
    "instance normalization": Case(operator="InstanceNormalization", constants=_channels()),
    "instance normalization, 60": Case(operator="InstanceNormalization", constants=_channels(), shape=ODD),
    "group normalization": Case(operator="GroupNormalization", attributes={"num_groups": 4}, constants=_channels()),
    "softmax of rows": Case(operator="Softmax", attributes={"axis": 3}),
    "softmax of channels": Case(operator="Softmax", attributes={"axis": 1}),
    "times a row, 60": Case(operator="Mul", constants=[np.ones(60, np.float32)], shape=ODD),
    "times a channel, 60": Case(operator="Mul", constants=[np.ones((32, 1, 1), np.float32)], shape=ODD),
    "relu, 60": Case(operator="Relu", shape=ODD),
    "sigmoid, 60": Case(operator="Sigmoid", shape=ODD),
    "transpose, channels last": Case(operator="Transpose", attributes={"perm": [0, 2, 3, 1]}),
    "transpose, pixels": Case(operator="Transpose", attributes={"perm": [0, 1, 3, 2]}),
    "transpose 512 x 512": Case(operator="Transpose", attributes={"perm": [1, 0]}, shape=(512, 512)),
    "convolution 1 x 1": Case(operator="Conv", constants=[np.full((32, 32, 1, 1), 0.03, np.float32)]),
    "convolution 3 x 3": Case(
        operator="Conv", attributes={"pads": [1] * 4}, constants=[np.full((32, 32, 3, 3), 0.003, np.float32)]
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One operator: least and median microseconds of each runtime."""

    name: str
    is_open: bool
    least: dict[str, float]
    median: dict[str, float]

    def cells(self, runtimes: Sequence[str]) -> list[str]:
        """Return the row as text: least (median) of each, and how many times theirs ours is."""
        times = [
            f"{self.least[name]:.0f} ({self.median[name]:.0f})" if name in self.least else "-" for name in runtimes
        ]
        ratios = [
            f"{self.least['ours'] / self.least[name]:.2f}" if name in self.least else "-"
            for name in runtimes
            if name != "ours"
        ]
        return [self.name, "open" if self.is_open else "known", *times, *ratios]


def measure(name: str, *, is_open: bool, threads: int, runs: int, runtimes: Sequence[str]) -> Row:
    """Return the times of one of CASES."""
    from forge_pipeline.codegen.build import build
    from forge_pipeline.codegen.options import Options
    from forge_pipeline.target import Target

    case = CASES[name]
    model = case.model(is_open=is_open)
    options = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
    with tempfile.TemporaryDirectory() as place:
        library, source = Path(place) / "model_library.so", Path(place) / "model.onnx"
        library.write_bytes(build(model, Target.from_tag("host"), options).to_bytes())
        onnx.save(model, source)
        contestants = {
            runtime: Contestant(runtime=runtime, model=library if runtime == "ours" else source) for runtime in runtimes
        }
        inputs = {"x": np.random.default_rng(0).standard_normal(case.shape).astype(np.float32)}
        found = compare(contestants, inputs, threads=threads, runs=runs)
    least = {name: 1e3 * value for name, value in found.least().items()}
    median = {name: 1e3 * value for name, value in found.median().items()}
    return Row(name=name, is_open=is_open, least=least, median=median)


def main(arguments: Sequence[str]) -> int:
    """Measure, print the table as it grows, and write it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="operators whose name has this in it")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=["ours", "onnxruntime"])
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    runtimes = [name for name in RUNTIMES if name in {"ours", *chosen.runtimes}]
    heads = ["operator", "sizes", *(f"{name} us" for name in runtimes)]
    heads += [f"ours / {name}" for name in runtimes if name != "ours"]
    print("| " + " | ".join(heads) + " |\n|---|---|" + "---:|" * (len(heads) - 2))
    rows = []
    for name, case in CASES.items():
        for is_open in (True, False) if len(case.shape) == 4 else (False,):
            if chosen.only in name:
                rows.append(measure(name, is_open=is_open, threads=chosen.threads, runs=chosen.runs, runtimes=runtimes))
                print("| " + " | ".join(rows[-1].cells(runtimes)) + " |", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
