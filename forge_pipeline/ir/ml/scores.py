"""From a learner's sums to scores and labels: the post transforms of ai.onnx.ml, and what the best score's class is.

Source: ONNX's operator reference, which names the transforms, and ONNX Runtime for what it leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from forge_pipeline.ir.ml.builder import INT64, Builder, Labels, Unusual

TINY = 1e-7
"""What SOFTMAX_ZERO takes for zero."""

WINITZKI = 0.147
"""The constant of the approximation of erf's inverse that ONNX Runtime computes PROBIT with (Winitzki, "A handy
approximation for the error function and its inverse", 2008)."""


def transform_of(attributes: Mapping[str, Any]) -> str:
    """Return the name of a node's post transform."""
    return bytes(attributes.get("post_transform", b"NONE")).decode()


def transformed(graph: Builder, scores: str, transform: str) -> str:
    """Return scores (rows, classes) after a post transform. Unusual for one that there is not."""
    if transform == "NONE":
        return scores
    if transform == "LOGISTIC":
        return graph.node("Sigmoid", scores)
    if transform == "SOFTMAX":
        return graph.node("Softmax", scores, axis=1)
    if transform == "SOFTMAX_ZERO":
        return _softmax_of_others(graph, scores)
    if transform == "PROBIT":
        return _probit(graph, scores)
    raise Unusual(f"the post transform {transform}")


def _softmax_of_others(graph: Builder, scores: str) -> str:
    """Softmax over the scores that are not zero; a zero stays one."""
    largest = graph.reduced("ReduceMax", scores)
    powers = graph.node("Exp", graph.node("Sub", scores, largest))
    is_zero = graph.node("Not", graph.node("Greater", graph.node("Abs", scores), TINY))
    small = graph.node("Mul", scores, graph.node("Exp", graph.node("Neg", largest)))
    total = graph.reduced("ReduceSum", graph.node("Where", is_zero, graph.node("Sub", powers, powers), powers))
    return graph.node("Div", graph.node("Where", is_zero, small, powers), total)


def _probit(graph: Builder, scores: str) -> str:
    """The quantile of the normal distribution, `sqrt(2) erf^-1(2 p - 1)`."""
    x = graph.node("Sub", graph.node("Mul", scores, 2.0), 1.0)
    inside = graph.node("Mul", graph.node("Add", graph.node("Neg", x), 1.0), graph.node("Add", x, 1.0))
    log = graph.node("Log", inside)
    first = graph.node("Add", graph.node("Mul", log, 0.5), 2 / (3.14159 * WINITZKI))
    second = graph.node("Mul", log, 1 / WINITZKI)
    root = graph.node("Sqrt", graph.node("Sub", graph.node("Mul", first, first), second))
    size = graph.node("Sqrt", graph.node("Sub", root, first))
    return graph.node("Mul", graph.node("Mul", graph.node("Sign", x), size), math.sqrt(2))


def of_two(graph: Builder, score: str, transform: str, *, is_signed: bool) -> str:
    """Return the scores of two classes, (rows, 2), where there is one, which is the second's: (rows, 1).

    The first's is the opposite where scores are ``is_signed``, else what is missing to 1; softmax is none of one score.
    """
    opposite = graph.node("Neg", score)
    if transform == "LOGISTIC":
        return graph.node("Sigmoid", graph.node("Concat", opposite, score, axis=1))
    first = opposite if is_signed else graph.node("Add", opposite, 1.0)
    return graph.node("Concat", first, score, axis=1)


def labels_of(attributes: Mapping[str, Any], ints: str) -> Labels:
    """Return a classifier's labels; ``ints`` is the attribute of those that are numbers."""
    texts = attributes.get("classlabels_strings", ())
    if texts:
        return tuple(bytes(text).decode() for text in texts)
    return tuple(int(label) for label in attributes.get(ints, ()))


def best(graph: Builder, scores: str) -> str:
    """Return the number of the class with the largest score, the first of equals: (rows,)."""
    return graph.node("ArgMax", scores, axis=1, keepdims=0)


def above(graph: Builder, score: str, limit: float) -> str:
    """Return 1 where a score (rows, 1) is above a limit, else 0: (rows,)."""
    is_above = graph.node("Cast", graph.node("Greater", score, limit), to=INT64)
    return graph.node("Reshape", is_above, np.array([-1], np.int64))


def give_labels(graph: Builder, number: str, labels: Labels, result: str) -> None:
    """Let ``result`` be the label of a class's number; text stays the number, and is noted."""
    if all(isinstance(label, str) for label in labels):
        graph.node("Identity", number, result=result)
        graph.texts[result] = tuple(str(label) for label in labels)
    elif labels == tuple(range(len(labels))):
        graph.node("Identity", number, result=result)
    else:
        graph.node("Gather", graph.constant(np.array(labels, np.int64)), number, result=result)


def give_scores(graph: Builder, scores: str, labels: Labels, result: str) -> None:
    """Let ``result`` be the scores of classes."""
    graph.node("Identity", scores, result=result)
    shape = graph.shape(scores)
    if len(shape) == 2 and shape[1] == len(labels):
        graph.classes[result] = labels
