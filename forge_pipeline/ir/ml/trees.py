"""TreeEnsembleClassifier as a TreeEnsembleRegressor whose targets are classes; both without their post transforms.

An ensemble stays a node, which the code generator has a kernel for. Source: ONNX's operator reference, ai.onnx.ml 3;
where it leaves open what two classes are, ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper

from forge_pipeline.ir.ml.builder import DOUBLE, FLOAT, ML, Builder, Labels, Unusual
from forge_pipeline.ir.ml.scores import (
    above,
    best,
    give_labels,
    give_scores,
    labels_of,
    of_two,
    transform_of,
    transformed,
)

Attributes = Mapping[str, Any]
Array = np.ndarray[Any, Any]

NEWEST = 5
"""The version of ai.onnx.ml that has TreeEnsemble, and no longer the others."""

TARGETS = {"class_ids": "target_ids", "class_nodeids": "target_nodeids", "class_treeids": "target_treeids",
           "class_weights": "target_weights", "class_weights_as_tensor": "target_weights_as_tensor"}  # fmt: skip
"""What a classifier calls otherwise than a regressor."""

AGREED = {0: "NONE", 3: "SOFTMAX_ZERO", 4: "PROBIT"}
"""The numbers of TreeEnsemble's post transforms that mean the same everywhere."""

LABELS = ("classlabels_int64s", "classlabels_strings")


def tree_ensemble(graph: Builder, node: NodeProto, attributes: Attributes) -> None:
    """TreeEnsemble without its post transform."""
    number = int(attributes.get("post_transform", 0))
    if number not in AGREED:
        raise Unusual("a post transform that is LOGISTIC for ONNX Runtime where it is SOFTMAX in the standard, or back")
    transform = AGREED[number]
    kept = {name: value for name, value in attributes.items() if name != "post_transform"}
    sums = graph.node("TreeEnsemble", graph.rows(node.input[0]), domain=ML, **kept)
    several = int(attributes.get("n_targets", 1)) > 1 or transform == "PROBIT"
    graph.give(transformed(graph, sums, transform if several else "NONE"), node.output[0])


def tree_regressor(graph: Builder, node: NodeProto, attributes: Attributes) -> None:
    """TreeEnsembleRegressor of floats or doubles, without its post transform."""
    transform = transform_of(attributes)
    kept = {name: value for name, value in attributes.items() if name != "post_transform"}
    sums = _sums(graph, node, kept)
    several = int(attributes.get("n_targets", 1)) > 1 or transform == "PROBIT"
    graph.give(transformed(graph, sums, transform if several else "NONE"), node.output[0])


def _sums(graph: Builder, node: NodeProto, attributes: Attributes) -> str:
    if graph.opsets.get(ML, 1) >= NEWEST:
        raise Unusual("an operator that this version of ai.onnx.ml has no longer")
    x = graph.rows(node.input[0])
    x = x if graph.elem_type(x) in (FLOAT, DOUBLE) else graph.cast(x, FLOAT)
    return graph.node("TreeEnsembleRegressor", x, domain=ML, **_typed(attributes, graph.elem_type(x)))


def _typed(attributes: Attributes, kind: int) -> dict[str, Any]:
    """Return the attributes, those that are tensors as lists where features are floats: both hold floats then."""
    found = dict(attributes)
    for name in [name for name in found if name.endswith("_as_tensor")]:
        if kind == FLOAT and found[name].data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(found.pop(name)).reshape(-1)
            found[name.removesuffix("_as_tensor")] = values.tolist()
    return {name: value for name, value in found.items() if not isinstance(value, list | tuple) or len(value)}


def _values(attributes: Attributes, name: str) -> Array:
    tensor = attributes.get(f"{name}_as_tensor")
    if tensor is not None:
        return np.asarray(numpy_helper.to_array(tensor)).reshape(-1)
    return np.asarray(attributes.get(name, ()), np.float32)


def tree_classifier(graph: Builder, node: NodeProto, attributes: Attributes) -> None:
    """TreeEnsembleClassifier: sums for each class, the largest one's label, and scores."""
    labels, transform = labels_of(attributes, LABELS[0]), transform_of(attributes)
    classes, base = np.asarray(attributes["class_ids"], np.int64), _values(attributes, "base_values")
    weights = _values(attributes, "class_weights")
    if len(labels) < 2 or not classes.size or classes.max() >= len(labels):
        raise Unusual("fewer than two classes, or weights of none of them")
    kept = {TARGETS.get(name, name): value for name, value in attributes.items() if name not in (*LABELS, *DONE)}
    if len(labels) > 2:
        scores = _scored(graph, node, kept, len(labels), base)
        number = best(graph, _of_those_reached(graph, node, kept, scores, base))
        final = transformed(graph, scores, transform)
    else:
        number, final = _two(graph, node, _Two(kept, labels, transform, base, classes, weights))
    give_labels(graph, number, labels, node.output[0])
    give_scores(graph, final, labels, node.output[1])


DONE = ("post_transform", "base_values", "base_values_as_tensor")
"""What comes after the sums."""


def _scored(graph: Builder, node: NodeProto, kept: Attributes, targets: int, base: Array) -> str:
    """Return the sums (rows, targets), and what is added to them."""
    with_base = {**kept, "n_targets": targets}
    if base.size == targets and base.any():
        if base.dtype == np.float64:
            with_base["base_values_as_tensor"] = numpy_helper.from_array(base)
        else:
            with_base["base_values"] = base.tolist()
    return _sums(graph, node, with_base)


def _of_those_reached(graph: Builder, node: NodeProto, kept: Attributes, scores: str, base: Array) -> str:
    """Return scores, the least there is for a class of which no leaf that is reached says anything.

    Where all scores are at least 0 and one is above, that class is not chosen anyhow.
    """
    treeids, classes = np.asarray(kept["target_treeids"]), np.asarray(kept["target_ids"])
    nodes = np.asarray(kept["target_nodeids"])
    leaves = np.array([bytes(mode) == b"LEAF" for mode in kept["nodes_modes"]])
    count = dict(zip(*np.unique(np.asarray(kept["nodes_treeids"])[leaves], return_counts=True), strict=True))
    said = np.unique(np.stack([treeids, classes, nodes], axis=1), axis=0)
    pairs, numbers = np.unique(said[:, :2], axis=0, return_counts=True)
    always = {int(item) for (tree, item), number in zip(pairs, numbers, strict=True) if count.get(tree) == number}
    weights = _values(kept, "target_weights")
    if len(always) == len(set(classes.tolist())) == graph.shape(scores)[1] or base.size:
        return scores
    if weights.min() >= 0 and set(said[:, 0].tolist()) and _reaches_something(said, count):
        return scores
    ones = {name: value for name, value in kept.items() if name != "target_weights_as_tensor"}
    counted = _scored(graph, node, {**ones, "target_weights": [1.0] * len(classes)}, graph.shape(scores)[1] or 0, base)
    return graph.node("Where", graph.node("Greater", counted, 0.0), scores, graph.constant(-np.inf, np.float32))


def _reaches_something(said: Array, count: Mapping[int, int]) -> bool:
    """Return whether every leaf of some tree says something of a class."""
    nodes = np.unique(said[:, [0, 2]], axis=0)
    trees, numbers = np.unique(nodes[:, 0], return_counts=True)
    return any(count.get(tree) == number for tree, number in zip(trees.tolist(), numbers.tolist(), strict=True))


class _Two:
    """A classifier of two classes."""

    def __init__(
        self, kept: Attributes, labels: Labels, transform: str, base: Array, classes: Array, weights: Array
    ) -> None:
        self.kept, self.labels, self.transform, self.base = kept, labels, transform, base
        self.given = sorted(set(classes.tolist()))
        self.is_positive = bool((weights >= 0).all())

    @property
    def limit(self) -> float:
        """What the score of the second class is above where that is chosen."""
        return 0.5 if len(self.given) == 1 and self.is_positive else 0.0


def _two(graph: Builder, node: NodeProto, two: _Two) -> tuple[str, str]:
    """Return the class's number (rows,) and the scores (rows, 2)."""
    if two.given == [0]:
        return _of_one_sum(graph, node, two)
    if two.base.size:
        raise Unusual("two classes with weights of their own, and base values")
    scores = _scored(graph, node, two.kept, 2, two.base)
    second = graph.node("Gather", scores, np.array([1], np.int64), axis=1)
    return above(graph, second, two.limit), transformed(graph, scores, two.transform)


def _of_one_sum(graph: Builder, node: NodeProto, two: _Two) -> tuple[str, str]:
    """One sum is for the second class; what the first one's is hangs on the sign of the weights."""
    if two.transform == "PROBIT" or two.base.size > 1:
        raise Unusual("one sum for two classes, and PROBIT or several base values")
    score = _scored(graph, node, two.kept, 1, two.base)
    number = above(graph, score, two.limit)
    return number, of_two(graph, score, two.transform, is_signed=not two.is_positive)
