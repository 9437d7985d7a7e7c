"""LinearClassifier and LinearRegressor as products. Source: ONNX's operator reference, and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import NodeProto

from forge_pipeline.ir.ml.builder import Builder, Unusual
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


def linear_regressor(graph: Builder, node: NodeProto, attributes: Attributes) -> None:
    """`x coefficients^T + intercepts`."""
    targets = int(attributes.get("targets", 1))
    weights, offset = _weights(attributes, targets)
    if offset.size != targets:
        offset = np.zeros(targets, np.float32)
    scores, transform = graph.affine(graph.floats(node.input[0]), weights, offset), transform_of(attributes)
    if targets > 1 or transform == "PROBIT":
        scores = transformed(graph, scores, transform)
    graph.give(scores, node.output[0])


def linear_classifier(graph: Builder, node: NodeProto, attributes: Attributes) -> None:
    """The class of the largest score; of two classes there may be one score, whose class is the second above 0."""
    labels, transform = labels_of(attributes, "classlabels_ints"), transform_of(attributes)
    offset = np.asarray(attributes.get("intercepts", ()), np.float32)
    count = offset.size or len(labels)
    weights, offset = _weights(attributes, count)
    scores = graph.affine(graph.floats(node.input[0]), weights, offset)
    if count > 1:
        if len(labels) < count:
            raise Unusual("more scores than labels")
        number, final = best(graph, scores), transformed(graph, scores, transform)
    else:
        number = above(graph, scores, 0.0)
        final = transformed(graph, scores, transform) if transform == "PROBIT" else scores
        if len(labels) == 2 and transform != "PROBIT":
            final = of_two(graph, scores, transform, is_signed=False)
        elif len(labels) != 2:
            labels = (0, 1)
    give_labels(graph, number, labels, node.output[0])
    give_scores(graph, final, labels, node.output[1])


def _weights(attributes: Attributes, count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return coefficients (features, scores) and intercepts, which are 0 where there are none."""
    listed = np.asarray(attributes["coefficients"], np.float32)
    if not count or listed.size % count:
        raise Unusual("coefficients that are no rows for each score")
    offset = np.asarray(attributes.get("intercepts", ()), np.float32)
    return np.ascontiguousarray(listed.reshape(count, -1).T), offset if offset.size else np.zeros(count, np.float32)
