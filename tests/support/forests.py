"""Random forests as nodes of ai.onnx.ml, and models of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

ML = "ai.onnx.ml"
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
Branch = tuple[int, int, int, int]
"""A node's number, feature, true and false successors; these are node numbers too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """How trees are grown: at random leaves, until each has ``leaves``; deeper ones are chosen less often."""

    trees: int = 5
    leaves: int = 6
    features: int = 4
    targets: int = 1
    dtype: Any = np.float32
    modes: Sequence[str] = ("BRANCH_LEQ",)
    missing: bool = False
    own_target: bool = False
    chain: bool = False
    seed: int = 0
    numbers: Sequence[float] = field(default=(-1.0, -0.5, -0.0, 0.0, 0.25, 1.0))

    def attributes(self) -> dict[str, Any]:
        """Return those of TreeEnsembleRegressor, without tensors."""
        rng = np.random.default_rng(self.seed)
        found: dict[str, list[Any]] = {name: [] for name in LISTS}
        for tree in range(self.trees):
            inner, leaves = self._grown(rng)
            for node in sorted([item[0] for item in inner] + leaves):
                row = next((item for item in inner if item[0] == node), (node, 0, 0, 0))
                number = float(rng.choice(self.numbers)) if row[2] else 0.0
                mode = str(rng.choice(list(self.modes))) if row[2] else "LEAF"
                missing = int(self.missing and bool(row[2]) and bool(rng.integers(2)))
                for name, value in zip(LISTS[:8], (tree, node, *row[1:], number, mode, missing), strict=True):
                    found[name].append(value)
            for leaf in leaves:
                targets = [tree % self.targets] if self.own_target else range(self.targets)
                for target in targets:
                    for name, value in zip(LISTS[8:], (tree, leaf, target, float(rng.standard_normal())), strict=True):
                        found[name].append(value)
        return found | {"n_targets": self.targets}

    def _grown(self, rng: np.random.Generator) -> tuple[list[Branch], list[int]]:
        inner, leaves, depth, count = list[Branch](), [0], {0: 0}, 1
        while len(leaves) < self.leaves:
            weights = np.array([1.0 / (1 + depth[leaf]) for leaf in leaves])
            at = len(leaves) - 1 if self.chain else int(rng.choice(len(leaves), p=weights / weights.sum()))
            node = leaves.pop(at)
            inner.append((node, int(rng.integers(self.features)), count, count + 1))
            depth |= {count: depth[node] + 1, count + 1: depth[node] + 1}
            leaves += [count, count + 1]
            count += 2
        return inner, leaves

    def samples(self, rows: int, *, nan: bool = False) -> Any:
        """Return features, many of which are exactly what nodes compare with."""
        rng = np.random.default_rng(self.seed + rows)
        x = rng.choice([*self.numbers, *rng.standard_normal(6), np.inf, -np.inf], (rows, self.features))
        return np.where(nan & (rng.random(x.shape) < 0.2), np.nan, x).astype(self.dtype)


LISTS = ("nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids",
         "nodes_values", "nodes_modes", "nodes_missing_value_tracks_true", "target_treeids", "target_nodeids",
         "target_ids", "target_weights")  # fmt: skip


def as_doubles(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return a regressor's or classifier's attributes with numbers as tensors of doubles."""
    found = dict(attributes)
    for name in ("nodes_values", "target_weights", "class_weights", "base_values"):
        if name in found:
            found[f"{name}_as_tensor"] = numpy_helper.from_array(np.array(found.pop(name), np.float64))
    return found


def model_of(
    nodes: Sequence[NodeProto],
    inputs: dict[str, tuple[int, Sequence[int | str]]],
    outputs: dict[str, int],
    *,
    opset: int = 18,
    ml: int = 3,
    constants: dict[str, Any] | None = None,
) -> onnx.ModelProto:
    """Return a model; outputs are given by their element types."""
    graph = helper.make_graph(
        list(nodes),
        "learner",
        [helper.make_tensor_value_info(name, kind, list(shape)) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid(ML, ml), *([helper.make_opsetid("", opset)] if opset else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def regressor(forest: Forest, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one TreeEnsembleRegressor, from x to y."""
    given, kind = forest.attributes() | attributes, TensorProto.FLOAT
    if forest.dtype == np.float64:
        given, kind = as_doubles(given), TensorProto.DOUBLE
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], name="forest", domain=ML, **given)
    return model_of([node], {"x": (kind, ("n", forest.features))}, {"y": TensorProto.FLOAT})
