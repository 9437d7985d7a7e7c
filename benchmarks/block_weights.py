"""Products by weights of four and eight bits in blocks, beside ONNX Runtime's MatMulNBits of accuracy level 4.

    python -m benchmarks.block_weights --target host

Both get the same file, with random weights in blocks of 32, and take turns on one thread (`benchmarks.turns`). The
table has the least and the median time of each, in milliseconds, ours / ONNX Runtime by least times, and how far the
results are from each other, as part of the largest.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.turns import Contestant, compare
from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.ir.qdq.to_standard import in_standard
from forge_pipeline.target import Target

SHAPES = ((2048, 2048), (4096, 11008))
"""Steps and columns."""
ROWS = (1, 16, 128)
SIZE = 32
OPTIONS = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)


def model_of(rows: int, steps: int, columns: int, bits: int) -> onnx.ModelProto:
    """Return one MatMulNBits whose activations may be rounded to int8."""
    random = np.random.default_rng(0)
    shape = (columns, steps // SIZE, SIZE * bits // 8)
    constants = {
        "weights": random.integers(0, 256, shape).astype(np.uint8),
        "scales": random.uniform(0.005, 0.015, shape[:2]).astype(np.float32),
    }
    node = helper.make_node(
        "MatMulNBits", ["x", *constants], ["y"], domain="com.microsoft",
        K=steps, N=columns, bits=bits, block_size=SIZE, accuracy_level=4,
    )  # fmt: skip
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, extent])
        for name, extent in (("x", steps), ("y", columns))
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "product", values[:1], values[1:], tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def measure(rows: int, steps: int, columns: int, bits: int, target: Target, runs: int) -> dict[str, Any]:
    """Return least and median milliseconds of both, their ratio, and the difference of the results."""
    model = model_of(rows, steps, columns, bits)
    x = np.random.default_rng(1).standard_normal((rows, steps)).astype(np.float32)
    with tempfile.TemporaryDirectory(prefix="block-weights-") as place:
        paths = {"ours": Path(place) / "model_library.so", "onnxruntime": Path(place) / "model.onnx"}
        onnx.save(model, paths["onnxruntime"])
        paths["ours"].write_bytes(build(in_standard(model), target, OPTIONS).to_bytes())
        contestants = {name: Contestant(runtime=name, model=path) for name, path in paths.items()}
        found = compare(contestants, {"x": x}, threads=1, runs=runs)
    if found.failed:
        raise RuntimeError(str(found.failed))
    least, median = found.least(), found.median()
    ours, theirs = (found.outputs[name] for name in ("ours", "onnxruntime"))
    return {
        "bits": bits, "rows": rows, "steps": steps, "columns": columns, "least": least, "median": median,
        "ratio": least["ours"] / least["onnxruntime"],
        "difference": float(np.abs(ours - theirs).max() / np.abs(theirs).max()),
    }  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Measure all shapes, print the table, and write it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="host", help="a CPU that this machine can run")
    parser.add_argument("--bits", nargs="*", type=int, default=[4, 8], choices=[4, 8])
    parser.add_argument("--runs", type=int, default=30, help="at least; small products have more")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    target, rows = Target.from_tag(chosen.target), []
    print("| bits | rows x steps x columns | ours, ms | ONNX Runtime, ms | ours / ORT | difference |")
    print("|---|---|---|---|---:|---:|")
    for bits in chosen.bits:
        for steps, columns in SHAPES:
            for count in ROWS:
                row = measure(count, steps, columns, bits, target, chosen.runs)
                rows.append(row)
                times = [f"{row['least'][name]:.3f}, {row['median'][name]:.3f}" for name in ("ours", "onnxruntime")]
                shape = f"{count} x {steps} x {columns}"
                print(
                    f"| {bits} | {shape} | {times[0]} | {times[1]} | {row['ratio']:.2f} | {row['difference']:.1e} |",
                    flush=True,
                )
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
