"""The normal form of an ensemble of decision trees, read from a node of ai.onnx.ml.

TreeEnsembleRegressor (versions 1, 3, 5) and TreeEnsemble (version 5) are read; a classifier is a regressor whose
targets are the classes (``forge_pipeline.ir.ml``). Source: ONNX's operator reference, ai.onnx.ml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
Attributes = Mapping[str, Any]
Aggregate = Literal["AVERAGE", "SUM", "MIN", "MAX"]

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
"""How a node compares its feature with its value, by TreeEnsemble-5's numbers."""

LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(len(MODES))
AGGREGATES: tuple[Aggregate, ...] = ("AVERAGE", "SUM", "MIN", "MAX")
"""By TreeEnsemble-5's numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """Trees of nodes that compare a feature with a value, and leaves that add to targets.

    All nodes are numbered through. ``true`` and ``false`` are the successors of each, and ``roots`` the first of each
    tree: a node, or the leaf ``~number`` where it is negative. ``missing``: NaN counts as true. Features are of
    ``dtype``, as ``value`` is. Each entry of ``weight`` is what ``leaf_of`` it gives to ``target_of`` it. The result
    for a target is the aggregate over all trees (0 where none has it) plus its ``base``.
    """

    dtype: str
    mode: Array
    feature: Array
    value: Array
    missing: Array
    true: Array
    false: Array
    roots: Array
    leaves: int
    leaf_of: Array
    target_of: Array
    weight: Array
    targets: int
    aggregate: Aggregate
    base: Array


def read(operator: str, attributes: Attributes, dtype: str) -> Ensemble:
    """Return the normal form of a node. ValueError for attributes that contradict each other."""
    try:
        made = _of_lists(attributes, dtype) if operator == "TreeEnsembleRegressor" else _of_tensors(attributes, dtype)
    except KeyError as error:
        raise ValueError(f"no attribute {error}") from error
    _check(made)
    return made


def _tensor(value: Any) -> Array:
    from onnx import numpy_helper

    return np.asarray(numpy_helper.to_array(value))


def _given(attributes: Attributes, name: str, dtype: str) -> Array:
    """Return an attribute that is a list, or a tensor of doubles under a longer name."""
    if f"{name}_as_tensor" in attributes:
        return _tensor(attributes[f"{name}_as_tensor"]).reshape(-1).astype(dtype)
    return np.asarray(attributes.get(name, ()), np.float32).astype(dtype)


def _ints(attributes: Attributes, name: str) -> Array:
    return np.asarray(attributes.get(name, ()), np.int64)


def _of_lists(attributes: Attributes, dtype: str) -> Ensemble:
    """Read TreeEnsembleRegressor, whose nodes are told by a tree's number and their own."""
    modes = [bytes(mode).decode() for mode in attributes["nodes_modes"]]
    lists = ("nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids")
    if {len(attributes[name]) for name in lists} | {_given(attributes, "nodes_values", dtype).size} != {len(modes)}:
        raise ValueError("lists of nodes that differ in length")
    trees, inner = _ints(attributes, "nodes_treeids"), np.array([mode != "LEAF" for mode in modes], bool)
    places = _Places(trees, _ints(attributes, "nodes_nodeids"))
    number = np.where(inner, np.cumsum(inner) - 1, ~(np.cumsum(~inner) - 1))
    feature = _ints(attributes, "nodes_featureids")[inner]
    missing = _ints(attributes, "nodes_missing_value_tracks_true")
    targets = int(attributes.get("n_targets", 1))
    base = _given(attributes, "base_values", dtype)
    leaf = number[places.find(_ints(attributes, "target_treeids"), _ints(attributes, "target_nodeids"))]
    kept = leaf < 0  # weights of inner nodes are never used
    unknown = sorted({mode for mode in modes if mode not in MODES} - {"LEAF"})
    if unknown:
        raise ValueError(f"the mode {unknown[0]}")
    return Ensemble(
        dtype=dtype,
        mode=np.array([MODES.index(mode) for mode in modes if mode != "LEAF"], np.int8),
        feature=feature,
        value=_given(attributes, "nodes_values", dtype)[inner],
        missing=missing[inner].astype(bool) if missing.size else np.zeros(len(feature), bool),
        true=number[places.find(trees[inner], _ints(attributes, "nodes_truenodeids")[inner])],
        false=number[places.find(trees[inner], _ints(attributes, "nodes_falsenodeids")[inner])],
        roots=number[np.sort(np.unique(trees, return_index=True)[1])],
        leaves=int((~inner).sum()),
        leaf_of=~leaf[kept],
        target_of=_ints(attributes, "target_ids")[kept],
        weight=_given(attributes, "target_weights", dtype)[kept],
        targets=targets,
        aggregate=bytes(attributes.get("aggregate_function", b"SUM")).decode(),  # type: ignore[arg-type]  # checked
        base=base if base.size == targets else np.full(targets, base[0] if base.size == 1 else 0, dtype),
    )


class _Places:
    """Where the node of a tree's number and its own stands in the lists."""

    def __init__(self, trees: Array, nodes: Array) -> None:
        self._trees, self._at = np.unique(trees, return_inverse=True)
        self._width = int(nodes.max(initial=0)) + 1
        keys = self._at * self._width + nodes
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        if len(np.unique(keys)) != len(keys):
            raise ValueError("two nodes of one number in a tree")

    def find(self, trees: Array, nodes: Array) -> Array:
        """Return the places of nodes. ValueError where there is none."""
        at = np.minimum(np.searchsorted(self._trees, trees), len(self._trees) - 1)
        keys = at * self._width + nodes
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        if (nodes < 0).any() or (nodes >= self._width).any() or (self._keys[place] != keys).any():
            raise ValueError("a successor that is no node of its tree")
        return self._order[place]


def _of_tensors(attributes: Attributes, dtype: str) -> Ensemble:
    """Read TreeEnsemble, whose inner nodes and leaves are numbered apart; each leaf gives to one target.

    A tree of a single leaf is a node both of whose successors are that leaf.
    """
    targets = int(attributes.get("n_targets", 1))

    def successors(which: str) -> Array:
        ids = _ints(attributes, f"nodes_{which}nodeids")
        return np.where(_ints(attributes, f"nodes_{which}leafs").astype(bool), ~ids, ids)

    target_of = _ints(attributes, "leaf_targetids")
    feature = _ints(attributes, "nodes_featureids")
    missing = _ints(attributes, "nodes_missing_value_tracks_true")
    made = Ensemble(
        dtype=dtype,
        mode=_tensor(attributes["nodes_modes"]).reshape(-1).astype(np.int8),
        feature=feature,
        value=_tensor(attributes["nodes_splits"]).reshape(-1).astype(dtype),
        missing=missing.astype(bool) if missing.size else np.zeros(len(feature), bool),
        true=successors("true"),
        false=successors("false"),
        roots=_ints(attributes, "tree_roots"),
        leaves=len(target_of),
        leaf_of=np.arange(len(target_of)),
        target_of=target_of,
        weight=_tensor(attributes["leaf_weights"]).reshape(-1).astype(dtype),
        targets=targets,
        aggregate=AGGREGATES[int(attributes.get("aggregate_function", 1))],
        base=np.zeros(targets, dtype),
    )
    _check(made)
    return _with_leaf_roots(_without_members(made, attributes))


def _with_leaf_roots(ensemble: Ensemble) -> Ensemble:
    """Return an ensemble whose trees of one leaf are that leaf."""
    roots = ensemble.roots
    inner = roots >= 0
    at = np.where(inner, roots, 0)
    alone = inner & (ensemble.true[at] == ensemble.false[at]) & (ensemble.true[at] < 0)
    return replace(ensemble, roots=np.where(alone, ensemble.true[at], roots))


def _without_members(ensemble: Ensemble, attributes: Attributes) -> Ensemble:
    """Return an ensemble without MEMBER: each is a search tree over its set that ends in comparisons with EQ.

    The sets stand in the order of the nodes, NaN between them (TreeEnsemble-5, ``membership_values``).
    """
    nodes = np.nonzero(ensemble.mode == MEMBER)[0]
    if not nodes.size:
        return ensemble
    listed = _tensor(attributes["membership_values"]).reshape(-1).astype(ensemble.dtype)
    ends = np.nonzero(np.isnan(listed))[0]
    sets = [np.unique(part[~np.isnan(part)]) for part in np.split(listed, ends)][: len(nodes)]
    if len(sets) < len(nodes) or any(not members.size for members in sets):
        raise ValueError("a set of members that is missing, or empty")
    grown = _Grown(ensemble)
    for node, members in zip(nodes.tolist(), sets, strict=True):
        grown.search(node, members)
    return replace(
        ensemble,
        mode=np.array(grown.mode, np.int8),
        feature=np.array(grown.feature),
        value=np.array(grown.value, ensemble.dtype),
        missing=np.array(grown.missing, bool),
        true=np.array(grown.true),
        false=np.array(grown.false),
    )


class _Grown:
    """The nodes of an ensemble as lists that grow."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.mode, self.feature = ensemble.mode.tolist(), ensemble.feature.tolist()
        self.value, self.missing = ensemble.value.tolist(), ensemble.missing.tolist()
        self.true, self.false = ensemble.true.tolist(), ensemble.false.tolist()

    def search(self, node: int, members: Array) -> None:
        """Make ``node`` the first of a search for its feature among ``members``."""
        found, other = self.true[node], self.false[node]
        waiting = [(node, 0, len(members))]
        while waiting:
            at, low, high = waiting.pop()
            middle = (low + high - 1) // 2
            self.value[at] = float(members[middle])
            if high - low == 1:
                self.mode[at], self.true[at], self.false[at] = EQ, found, other
                continue
            self.mode[at] = LEQ
            first = len(self.mode)
            for values, value in (
                (self.mode, EQ), (self.feature, self.feature[node]), (self.value, 0.0),
                (self.missing, self.missing[node]), (self.true, found), (self.false, other),
            ):  # fmt: skip
                values += [value, value]
            self.true[at], self.false[at] = first, first + 1
            waiting += [(first, low, middle + 1), (first + 1, middle + 1, high)]


def _check(ensemble: Ensemble) -> None:
    """Raise ValueError where lists differ in length, or a number leads nowhere."""
    nodes = len(ensemble.feature)
    lists = (ensemble.mode, ensemble.value, ensemble.missing, ensemble.true, ensemble.false)
    if any(len(values) != nodes for values in lists):
        raise ValueError("lists of nodes that differ in length")
    if len(ensemble.weight) != len(ensemble.leaf_of) or len(ensemble.target_of) != len(ensemble.leaf_of):
        raise ValueError("lists of weights that differ in length")
    if ensemble.aggregate not in AGGREGATES:
        raise ValueError(f"the aggregate {ensemble.aggregate}")
    if not ensemble.roots.size or ensemble.targets < 1:
        raise ValueError("no tree, or no target")
    for successors in (ensemble.true, ensemble.false, ensemble.roots):
        if successors.size and not (-ensemble.leaves <= successors.min() and successors.max() < nodes):
            raise ValueError("a successor that is no node")
    for numbers, end in ((ensemble.target_of, ensemble.targets), (ensemble.leaf_of, ensemble.leaves)):
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < end):
            raise ValueError("a weight of no target, or of no leaf")
    if nodes and not (ensemble.feature.min() >= 0 and ensemble.mode.min() >= 0 and ensemble.mode.max() <= MEMBER):
        raise ValueError("a feature or a mode that there is not")
