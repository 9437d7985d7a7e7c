"""Speed of single convolutions against what the core can do: GFLOP/s beside the measured peak of multiply-adds.

Each is a network of its own, compiled as any is; time is its kernel's, the least of many runs on one thread. A
convolution by Winograd's method counts the arithmetic of the direct one, and may exceed the peak; so may products in
pairs of bfloat16, of which an instruction makes twice as many.

    python -m benchmarks.kernels --target x86-64/v3
    python -m benchmarks.kernels --arithmetic bfloat16
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.runners.peaks import peaks
from forge_pipeline.target import Target
from forge_runtime.engine import Engine

RESNET50 = (
    (56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1), (56, 256, 64, 1, 1), (56, 128, 128, 3, 2),
    (28, 512, 128, 1, 1), (28, 128, 128, 3, 1), (28, 128, 512, 1, 1), (14, 1024, 256, 1, 1), (14, 256, 256, 3, 1),
    (14, 256, 1024, 1, 1), (7, 2048, 512, 1, 1), (7, 512, 512, 3, 1), (7, 512, 2048, 1, 1),
)  # fmt: skip
"""Image size, channels, filters, kernel and stride of the convolutions of ResNet-50."""

NAME = "conv2d"
"""What the kernels of convolutions are called: what rearranges an image beside them is left out."""


def network(row: Sequence[int]) -> onnx.ModelProto:
    """Return a model of one convolution and its activation."""
    size, channels, filters, kernel, stride = row
    shape = (filters, channels, kernel, kernel)
    weight = np.random.default_rng(0).standard_normal(shape, np.float32) / np.float32(channels**0.5)
    border = [kernel // 2] * 4
    nodes = [
        helper.make_node("Conv", ["image", "weight"], ["sums"], strides=[stride] * 2, pads=border),
        helper.make_node("Relu", ["sums"], ["results"]),
    ]
    image = helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, [1, channels, size, size])
    results = helper.make_tensor_value_info("results", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "convolution", [image], [results], [numpy_helper.from_array(weight, "weight")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def measure(target: Target, options: Options, row: Sequence[int], runs: int) -> tuple[float, str]:
    """Return the operations a second of a convolution, and what its kernel is called."""
    size, channels, filters, kernel, stride = row
    engine = Engine(build(network(row), target, options).to_bytes(), threads=1)
    image = np.random.default_rng(1).standard_normal((1, channels, size, size), np.float32)
    found = [each for each in engine.profile(image, runs=runs) if NAME in each.name]
    operations = 2.0 * filters * channels * kernel**2 * (-(-size // stride)) ** 2
    return 1e3 * operations / sum(each.milliseconds for each in found), " + ".join(each.name for each in found)


def main(arguments: Sequence[str]) -> int:
    """Measure all shapes, print the table, and write it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="host", help="a CPU that this machine can run")
    parser.add_argument("--arithmetic", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    target = Target.from_tag(chosen.target)
    options = Options(
        generator="auto", opt_level=3, float16=False, channel_layout=None, float_arithmetic=chosen.arithmetic
    )
    rows = []
    print("| image, channels, filters, kernel, stride | kernel | GFLOP/s | of peak |\n|---|---|---|---|")
    for shape in RESNET50:
        speed, name = measure(target, options, shape, chosen.runs)
        best = peaks(again=True).float32
        rows.append({"shape": shape, "kernel": name, "gflops": speed / 1e9, "peak_gflops": best / 1e9})
        print(f"| {', '.join(map(str, shape))} | {name} | {speed / 1e9:.0f} | {speed / best:.0%} |", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
