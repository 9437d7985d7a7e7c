"""Ensembles of trees beside ONNX Runtime: one row, and a hundred, on one thread.

The trees are random, in the sizes that learners make by default. Both are called from Python, run after run in turns,
each with other rows, so that no branch is foreseen; printed is the median of each, and of the ratios of the pairs.

    python -m benchmarks.trees --rows 1 100
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target
from forge_runtime.engine import Engine

FEATURES = 20
INPUTS = 64
"""Different inputs that calls go through."""

Tree = list[tuple[int, float, int, int]]
"""Feature, threshold, true and false successor of each node; a leaf's feature is -1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many trees, of how many leaves, which are at most ``depth`` deep."""

    trees: int
    leaves: int
    depth: int = 1000
    targets: int = 1


SHAPES = {
    "boosting, 8 leaves": Shape(trees=100, leaves=8, depth=3),
    "boosting, 31 leaves": Shape(trees=100, leaves=31),
    "boosting, 64 leaves": Shape(trees=100, leaves=64, depth=6),
    "forest, 100 leaves": Shape(trees=100, leaves=100),
    "forest, 1000 leaves": Shape(trees=100, leaves=1000),
    "forest, 5 classes": Shape(trees=100, leaves=100, targets=5),
}


def grown(shape: Shape, rng: np.random.Generator) -> Tree:
    """Return a tree that grows at random leaves, rather at those that are not deep."""
    tree: Tree = [(-1, 0.0, 0, 0)]
    depth, leaves = [0], [0]
    while leaves and (len(tree) + 1) // 2 < shape.leaves:
        weights = 1.0 / (1.0 + np.array([depth[leaf] for leaf in leaves]))
        node = leaves.pop(int(rng.choice(len(leaves), p=weights / weights.sum())))
        children = (len(tree), len(tree) + 1)
        tree[node] = (int(rng.integers(FEATURES)), float(0.7 * rng.standard_normal()), *children)
        tree += [(-1, 0.0, 0, 0)] * 2
        depth += [depth[node] + 1] * 2
        leaves += [child for child in children if depth[child] < shape.depth]
    return tree


def model(shape: Shape) -> onnx.ModelProto:
    """Return a TreeEnsembleRegressor of random trees."""
    rng = np.random.default_rng(0)
    nodes = [(tree, number, *node) for tree in range(shape.trees) for number, node in enumerate(grown(shape, rng))]
    weights = [(tree, number, target) for tree, number, feature, *_ in nodes if feature < 0
               for target in range(shape.targets)]  # fmt: skip
    treeids, nodeids, features, values, true, false = zip(*nodes, strict=True)
    target_treeids, target_nodeids, target_ids = zip(*weights, strict=True)
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=shape.targets,
        nodes_treeids=treeids, nodes_nodeids=nodeids, nodes_featureids=[max(0, feature) for feature in features],
        nodes_values=values, nodes_truenodeids=true, nodes_falsenodeids=false,
        nodes_modes=["LEAF" if feature < 0 else "BRANCH_LEQ" for feature in features],
        target_treeids=target_treeids, target_nodeids=target_nodeids, target_ids=target_ids,
        target_weights=rng.standard_normal(len(weights)).tolist(),
    )  # fmt: skip
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", FEATURES]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", shape.targets])]  # fmt: skip
    graph = helper.make_graph([node], "trees", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def session(made: onnx.ModelProto) -> Callable[[Any], Any]:
    """Return ONNX Runtime on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    run = onnxruntime.InferenceSession(made.SerializeToString(), options).run
    return lambda x: run(None, {"x": x})


def engine(made: onnx.ModelProto) -> Callable[[Any], Any]:
    """Return the compiled model on one thread."""
    options = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
    return Engine(build(made, Target.from_tag("host"), options).to_bytes(), threads=1)


def pairs(contestants: Sequence[Callable[[Any], Any]], rows: int, runs: int) -> Iterator[tuple[float, ...]]:
    """Yield seconds of one call of each, after the other."""
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal((rows, FEATURES)).astype(np.float32) for _ in range(INPUTS)]
    for number in range(runs + INPUTS):
        taken = []
        for run in contestants:
            begun = time.perf_counter()
            run(inputs[number % INPUTS])
            taken.append(time.perf_counter() - begun)
        if number >= INPUTS:
            yield tuple(taken)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each shape and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--runs", type=int, default=1000)
    asked = parser.parse_args(arguments)
    print("| 100 trees | rows | ONNX Runtime, µs | compiled, µs | ratio |\n|---|---|---|---|---|")
    for name, shape in SHAPES.items():
        made = model(shape)
        contestants = [session(made), engine(made)]
        for rows in asked.rows:
            taken = list(pairs(contestants, rows, asked.runs))
            theirs, ours = (1e6 * statistics.median(column) for column in zip(*taken, strict=True))
            ratio = statistics.median(b / a for a, b in taken)
            print(f"| {name} | {rows} | {theirs:.1f} | {ours:.1f} | {ratio:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
