"""Ensembles as the passes read and write them: lists of TreeEnsembleRegressor with one target, in float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from onnx import NodeProto

from forge_pipeline.ir.ml.builder import ML
from forge_pipeline.passes.graph import Array, Graph
from forge_pipeline.passes.nodes import attribute

_NODES: Final = {
    "nodes_treeids": 0, "nodes_nodeids": 0, "nodes_featureids": 0, "nodes_modes": "LEAF", "nodes_values": 0.0,
    "nodes_truenodeids": 0, "nodes_falsenodeids": 0, "nodes_missing_value_tracks_true": 0,
}  # fmt: skip
"""Lists with an entry for each node, and what stands for one that is left out."""
_TARGETS: Final = ("target_treeids", "target_nodeids", "target_weights")
_READ: Final = {
    *_NODES, *_TARGETS, "nodes_hitrates", "target_ids", "n_targets", "base_values", "aggregate_function",
    "post_transform",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """Trees whose leaves are added up. ``lists`` are those of nodes, ``trees`` and ``nodes`` name the leaf of each of
    ``weights``."""

    lists: Mapping[str, list[Any]]
    trees: list[int]
    nodes: list[int]
    weights: Array
    base: np.float32

    @classmethod
    def of(cls, node: NodeProto | None) -> Self | None:
        """Return what a node computes, None where it is anything else."""
        if node is None or node.op_type != "TreeEnsembleRegressor" or node.domain != ML:
            return None
        known = {entry.name for entry in node.attribute}
        if not known <= _READ or attribute(node, "n_targets", 1) != 1 or any(attribute(node, "target_ids", [])):
            return None
        lists = {name: list(attribute(node, name, [])) for name in _NODES}
        count = len(lists["nodes_treeids"])
        for name, entries in lists.items():
            lists[name] = [_text(entry) for entry in entries] or [_NODES[name]] * count
        is_sum = attribute(node, "aggregate_function", "SUM") == "SUM" or len(set(lists["nodes_treeids"])) == 1
        base = attribute(node, "base_values", [])
        if not is_sum or attribute(node, "post_transform", "NONE") != "NONE" or len(base) > 1:
            return None
        trees, nodes, weights = (attribute(node, name, []) for name in _TARGETS)
        if len({*map(len, lists.values())}) != 1 or not len(trees) == len(nodes) == len(weights):
            return None
        return cls(
            lists=lists,
            trees=trees,
            nodes=nodes,
            weights=np.asarray(weights, np.float32),
            base=np.float32(base[0] if base else 0),
        )

    @property
    def is_choice(self) -> bool:
        """Whether each row's result is the weight of one leaf."""
        leaves = {
            (tree, node)
            for tree, node, mode in zip(
                *(self.lists[name] for name in ("nodes_treeids", "nodes_nodeids", "nodes_modes")), strict=True
            )
            if mode == "LEAF"
        }
        named = list(zip(self.trees, self.nodes, strict=True))
        return len(set(self.lists["nodes_treeids"])) == 1 and len(named) == len(leaves) and set(named) == leaves

    def write(self, graph: Graph, rows: str, hint: str) -> str:
        """Add the node that computes this of ``rows``; return its result."""
        made = graph.add(
            "TreeEnsembleRegressor",
            [rows],
            hint,
            domain=ML,
            **self.lists,
            target_treeids=self.trees,
            target_nodeids=self.nodes,
            target_ids=[0] * len(self.trees),
            target_weights=self.weights.tolist(),
            n_targets=1,
            **({"base_values": [float(self.base)]} if self.base else {}),
        )
        return str(made.output[0])


def _text(entry: Any) -> Any:
    """Return an entry of an attribute as Python knows it."""
    return entry.decode() if isinstance(entry, bytes) else entry


def together(ensembles: Sequence[Ensemble]) -> Ensemble:
    """Return the ensemble whose results are the sums of these ensembles' results."""
    lists: dict[str, list[Any]] = {name: [] for name in _NODES}
    trees: list[int] = []
    nodes: list[int] = []
    first = 0
    for one in ensembles:
        numbers = {tree: first + at for at, tree in enumerate(dict.fromkeys(one.lists["nodes_treeids"]))}
        for name, entries in one.lists.items():
            lists[name] += [numbers[tree] for tree in entries] if name == "nodes_treeids" else entries
        trees += [numbers[tree] for tree in one.trees]
        nodes += one.nodes
        first += len(numbers)
    weights = np.concatenate([one.weights for one in ensembles])
    return Ensemble(
        lists=lists, trees=trees, nodes=nodes, weights=weights, base=np.float32(sum(one.base for one in ensembles))
    )
