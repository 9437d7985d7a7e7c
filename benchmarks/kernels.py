"""Speed of single convolutions against what the core can do: GFLOP/s beside the measured peak of multiply-adds.

Time is the thread's own CPU time, the least of many runs, on one thread; the peak is measured in between, so that a
core shared with others lowers both. A convolution by Winograd's method counts the arithmetic of the direct one, and
may exceed the peak.

    python -m benchmarks.kernels --target x86-64/v3
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forge_pipeline.codegen.float32.conv import direct
from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.float32.conv.plan import choose_plan
from forge_pipeline.codegen.float32.conv.winograd import fixed_size as winograd
from forge_pipeline.codegen.tiled import PASS_CONFIG
from forge_pipeline.codegen.tir import local_buffers, primitives
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.target import Target

RESNET50 = (
    (56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1), (56, 256, 64, 1, 1), (56, 128, 128, 3, 2),
    (28, 512, 128, 1, 1), (28, 128, 128, 3, 1), (28, 128, 512, 1, 1), (14, 1024, 256, 1, 1), (14, 256, 256, 3, 1),
    (14, 256, 1024, 1, 1), (7, 2048, 512, 1, 1), (7, 512, 512, 3, 1), (7, 512, 2048, 1, 1),
)  # fmt: skip
"""Image size, channels, filters, kernel and stride of the convolutions of ResNet-50."""

CHAINS = 12
"""Independent sums in the loop that measures the peak: more than latency times ports of any core."""

UNROLLED = 8
"""Rounds that share a factor, which takes the ports of multiply-adds to make."""

ROUNDS = 200_000

Run = Callable[[], Any]


def build(target: Target, sch: Any) -> Any:
    """Compile one scheduled kernel."""
    import tvm

    with tvm.transform.PassContext(config=PASS_CONFIG):
        return local_buffers.build(sch.mod, target)["main"]


def peak(target: Target) -> tuple[Run, float]:
    """Return a loop of nothing but multiply-adds in registers, and its floating-point operations."""
    import tvm
    from tvm import s_tir, te

    lanes = target.lanes
    x = te.placeholder((lanes,), name="x")
    step = te.reduce_axis((0, ROUNDS), "step")
    scale = (step // UNROLLED % 2).astype("float32")
    y = te.compute((CHAINS, lanes), lambda i, j: te.sum(x[j] * scale, axis=[step]), name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    block = sch.get_sblock("y")
    copy = sch.cache_write(block, 0, "local")
    chain, lane, along = sch.get_loops(block)
    along, round_in = sch.split(along, [None, UNROLLED])
    sch.reorder(along, round_in, chain, lane)
    sch.vectorize(lane)
    sch.unroll(round_in)
    sch.unroll(chain)
    primitives.vectorize_and_unroll(sch, copy, below=0, lanes=lanes)
    primitives.vectorize_and_unroll(sch, sch.decompose_reduction(block, along), below=0, lanes=lanes)
    kernel = build(target, sch)
    arrays = [tvm.runtime.tensor(np.zeros(shape, np.float32)) for shape in ((lanes,), (CHAINS, lanes))]
    return (lambda: kernel(*arrays)), 2.0 * CHAINS * lanes * ROUNDS


def convolution(target: Target, row: Sequence[int]) -> tuple[Run, float, str]:
    """Return one convolution as the code generator makes it, its operations, and the algorithm."""
    import tvm
    from tvm import s_tir, te

    size, channels, filters, kernel, stride = row
    machine = Machine.of(target)
    geometry = Geometry(
        channels=channels, filters=filters, groups=1, size=(size, size), kernel=(kernel, kernel),
        strides=(stride, stride), padding=(kernel // 2,) * 4, dilation=(1, 1),
    )  # fmt: skip
    random = np.random.default_rng(0)
    weights = random.standard_normal((filters, channels, kernel, kernel)).astype(np.float32) / np.sqrt(channels)
    transform = winograd.choose(machine, geometry, weights)
    image = te.placeholder((1, channels // machine.lanes, size, size, machine.lanes), name="image")
    if transform is None:
        plan = choose_plan(machine, geometry)
        packed = direct.pack_weight(weights, machine.lanes, machine.lanes, oc_blocks=plan.oc_blocks)
        weight = te.placeholder(packed.shape, name="weight")
        result = direct.convolve(image, weight, geometry, plan)
    else:
        blocks = (-(-filters // machine.lanes), transform.size, transform.size, -(-channels // machine.lanes))
        packed = random.standard_normal((*blocks, machine.lanes, machine.lanes)).astype(np.float32)
        weight = te.placeholder(packed.shape, name="weight")
        result = winograd.convolve(image, weight, geometry, transform)
    relu = te.compute(result.shape, lambda *index: te.max(result(*index), 0.0), name="relu")
    sch = s_tir.Schedule(te.create_prim_func([image, weight, relu]))
    (direct if transform is None else winograd).schedule(sch, machine)
    function = build(target, sch)
    shapes = [[int(extent) for extent in tensor.shape] for tensor in (image, relu)]
    arrays = [random.standard_normal(shapes[0]).astype(np.float32), packed, np.zeros(shapes[1], np.float32)]
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(array)) for array in arrays]
    flops = 2.0 * filters * geometry.output[0] * geometry.output[1] * geometry.steps
    name = "direct" if transform is None else f"winograd {transform.step}x{transform.step}"
    return (lambda: function(*tensors)), flops, name


def least(runs: Sequence[Run], rounds: int) -> list[float]:
    """Return the least CPU seconds of each, in turns."""
    found = [float("inf")] * len(runs)
    for _ in range(rounds):
        for index, run in enumerate(runs):
            start = time.thread_time()
            run()
            found[index] = min(found[index], time.thread_time() - start)
    return found


def main(arguments: Sequence[str]) -> int:
    """Measure all shapes, print the table, and write it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="host", help="a CPU that this machine can run")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    target = Target.from_tag(chosen.target)
    ceiling, ceiling_flops = peak(target)
    rows = []
    print("| image, channels, filters, kernel, stride | algorithm | GFLOP/s | of peak |\n|---|---|---|---|")
    for shape in RESNET50:
        run, flops, name = convolution(target, shape)
        seconds, ceiling_seconds = least([run, ceiling], chosen.rounds)
        speed, best = flops / seconds / 1e9, ceiling_flops / ceiling_seconds / 1e9
        rows.append({"shape": shape, "algorithm": name, "gflops": speed, "peak_gflops": best})
        print(f"| {', '.join(map(str, shape))} | {name} | {speed:.0f} | {speed / best:.0%} |", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
