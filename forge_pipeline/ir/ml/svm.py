"""SVMClassifier and SVMRegressor as products with their support vectors.

Source: ONNX's operator reference; ONNX Runtime for the order of coefficients and scores, which is libsvm's; class
probabilities of several classes: Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by Pairwise
Coupling", JMLR 2004, algorithm 2, as libsvm and ONNX Runtime iterate it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
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
Array = np.ndarray[Any, Any]

LEAST = 1e-7
"""What a probability of a class against another is at least."""

PRECISION = 0.005
"""How far from optimal the coupled probabilities may be, over the number of classes, for the iteration to end."""

ITERATIONS = 6
"""How often they are improved at most: of 3,000 random tables of up to 15 classes, none needed more than four times to
be exact, nor of two classes more than two."""


def _kernel(graph: Builder, x: str, vectors: Array, attributes: Attributes) -> str:
    """Return the kernel of each row with each support vector: (rows, vectors)."""
    kind = bytes(attributes.get("kernel_type", b"LINEAR")).decode()
    gamma, coefficient, degree = ([*attributes.get("kernel_params", ()), 0.0, 0.0, 0.0])[:3]
    if kind == "RBF":
        centre = vectors.mean(axis=0)  # differences of squares lose what the squares have in common
        moved, own = graph.node("Sub", x, centre), vectors - centre
        product = graph.node("MatMul", moved, np.ascontiguousarray(own.T * np.float32(2 * gamma)))
        squares = graph.reduced("ReduceSum", graph.node("Mul", moved, moved))
        offset = graph.node("Add", graph.node("Mul", squares, float(gamma)), np.float32(gamma) * (own**2).sum(axis=1))
        distance = graph.node("Sub", product, offset)
        zero = graph.constant(0, np.float32)
        return graph.node("Exp", graph.node("Min", distance, zero))
    product = graph.node("MatMul", x, np.ascontiguousarray(vectors.T))
    if kind == "LINEAR":
        return product
    inner = graph.node("Add", graph.node("Mul", product, float(gamma)), float(coefficient))
    if kind == "POLY":
        return graph.node("Pow", inner, float(degree))
    if kind == "SIGMOID":
        return graph.node("Tanh", inner)
    raise Unusual(f"the kernel {kind}")


def svm_regressor(graph: Builder, node: NodeProto, attributes: Attributes) -> None:
    """The kernels of a row times coefficients; of one class, on which side of 0 that is."""
    x, count = graph.floats(node.input[0]), int(attributes.get("n_supports", 0))
    coefficients = np.asarray(attributes["coefficients"], np.float32)
    rho = np.asarray(attributes["rho"], np.float32)[:1]
    if count:
        x = _kernel(graph, x, np.asarray(attributes["support_vectors"], np.float32).reshape(count, -1), attributes)
    score = graph.affine(x, coefficients.reshape(-1, 1), rho)
    if attributes.get("one_class", 0):
        sides = (graph.constant(side, np.float32) for side in (1, -1))
        score = graph.node("Where", graph.node("Greater", score, 0.0), *sides)
    graph.give(score, node.output[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """One score for each two classes: whether it is above 0 says which of them has the vote."""

    classes: int

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return list(combinations(range(self.classes), 2))

    def weights(self, coefficients: Array, counts: Array) -> Array:
        """Return what each support vector gives to each pair, (vectors, pairs), of libsvm's (classes - 1, vectors)."""
        owner = np.repeat(np.arange(self.classes), counts)
        columns = [
            np.where(owner == i, coefficients[j - 1], 0) + np.where(owner == j, coefficients[i], 0)
            for i, j in self.pairs
        ]
        return np.ascontiguousarray(np.stack(columns, axis=1), np.float32)

    def winner(self, graph: Builder, scores: str) -> str:
        """Return the number of the class with most votes, the first of equals: (rows,)."""
        first, second = (np.zeros((len(self.pairs), self.classes), np.float32) for _ in range(2))
        for number, (i, j) in enumerate(self.pairs):
            first[number, i], second[number, j] = 1, 1
        is_first = graph.node("Cast", graph.node("Greater", scores, 0.0), to=1)
        votes = graph.node("Add", graph.node("MatMul", is_first, first - second), second.sum(axis=0))
        return best(graph, votes)


def svm_classifier(graph: Builder, node: NodeProto, attributes: Attributes) -> None:
    """The class that wins most of the comparisons with another; without support vectors, that of the largest score."""
    labels = labels_of(attributes, "classlabels_ints")
    counts = np.asarray(attributes.get("vectors_per_class", ()), np.int64)
    if not counts.sum():
        _linear(graph, node, attributes)
        return
    if len(labels) < 2 or len(counts) != len(labels):
        raise Unusual("fewer than two classes, or vectors of others")
    pairs, x = _Pairs(classes=len(labels)), graph.floats(node.input[0])
    vectors = np.asarray(attributes["support_vectors"], np.float32).reshape(int(counts.sum()), -1)
    coefficients = np.asarray(attributes["coefficients"], np.float32).reshape(len(labels) - 1, -1)
    rho = np.asarray(attributes["rho"], np.float32)[: len(pairs.pairs)]
    weights = pairs.weights(coefficients, counts)
    scores = graph.affine(_kernel(graph, x, vectors, attributes), weights, rho)
    give_labels(graph, pairs.winner(graph, scores), labels, node.output[0])
    a, b = (np.asarray(attributes.get(name, ()), np.float32) for name in ("prob_a", "prob_b"))
    transform = transform_of(attributes)
    if a.size:
        against = _probabilities(graph, scores, a[: rho.size], b[: rho.size])
        final = transformed(graph, _coupled(graph, against, pairs), transform)
    elif len(labels) == 2:
        if transform == "PROBIT":
            raise Unusual("one score for two classes, and PROBIT")
        final = of_two(graph, scores, transform, is_signed=transform == "NONE")
    else:
        final = transformed(graph, scores, transform)
    give_scores(graph, final, labels if a.size or len(labels) == 2 else (), node.output[1])


def _linear(graph: Builder, node: NodeProto, attributes: Attributes) -> None:
    labels = labels_of(attributes, "classlabels_ints")
    coefficients = np.asarray(attributes["coefficients"], np.float32).reshape(len(labels), -1)
    rho = np.repeat(np.asarray(attributes["rho"], np.float32)[:1], len(labels))
    scores = graph.affine(graph.floats(node.input[0]), np.ascontiguousarray(coefficients.T), rho)
    number = best(graph, scores)
    if len(labels) == 2 and not attributes.get("prob_a"):
        largest, positive = graph.reduced("ReduceMax", scores), bool((coefficients >= 0).all())
        limit = float(np.nextafter(np.float32(0.5), np.float32(0))) if positive else 0.0
        number = graph.node("Max", number, above(graph, largest, limit))
    give_labels(graph, number, labels, node.output[0])
    give_scores(graph, transformed(graph, scores, transform_of(attributes)), labels, node.output[1])


def _probabilities(graph: Builder, scores: str, a: Array, b: Array) -> str:
    """Return the probability of the first class of each pair: (rows, pairs)."""
    fitted = graph.node("Sigmoid", graph.node("Neg", graph.node("Add", graph.node("Mul", scores, a), b)))
    low, high = (graph.constant(limit, np.float32) for limit in (LEAST, 1 - LEAST))
    return graph.node("Min", graph.node("Max", fitted, low), high)


def _coupled(graph: Builder, against: str, pairs: _Pairs) -> str:
    """Return the probabilities of all classes, (rows, classes), that go best with those of pairs.

    The sum over pairs of (r_ji p_i - r_ij p_j)^2 is made least, p_i at a time. Rows that are done stay as they are.
    """
    classes = pairs.classes
    table = np.zeros((len(pairs.pairs), classes * classes), np.float32)
    sign, offset = table.copy(), np.zeros(classes * classes, np.float32)
    for number, (i, j) in enumerate(pairs.pairs):
        sign[number, i * classes + j], sign[number, j * classes + i] = 1, -1
        offset[j * classes + i] = 1
    square = np.array([-1, classes, classes], np.int64)
    r = graph.node("Reshape", graph.node("Add", graph.node("MatMul", against, sign), offset), square)
    crossed = graph.node("Transpose", r, perm=[0, 2, 1])
    own = graph.node("Reshape", graph.reduced("ReduceSum", graph.node("Mul", crossed, crossed)), square[:2] * [1, 1])
    mask = np.eye(classes, dtype=np.float32)
    diagonal = graph.node("Mul", graph.unsqueezed(own), mask)
    Q = graph.node("Sub", diagonal, graph.node("Mul", graph.node("Mul", r, crossed), 1 - mask))
    rows = [
        graph.node("Reshape", graph.node("Gather", Q, np.array([i], np.int64), axis=1), square[:2])
        for i in range(classes)
    ]
    points = [graph.node("Gather", own, np.array([i], np.int64), axis=1) for i in range(classes)]
    p = graph.node("Add", graph.node("Mul", own, 0.0), 1 / classes)
    done = ""
    for _ in range(min(ITERATIONS, classes + 1)):
        p, done = _improved(graph, p, done, Q, rows, points)
    return p


def _improved(graph: Builder, p: str, done: str, Q: str, rows: list[str], points: list[str]) -> tuple[str, str]:
    """Return ``p`` after one more iteration, and which rows needed none: (rows, 1)."""
    classes = len(rows)
    flat = np.array([-1, classes], np.int64)
    before = p
    Qp = graph.node("Reshape", graph.node("MatMul", Q, graph.unsqueezed(p)), flat)
    pQp = graph.reduced("ReduceSum", graph.node("Mul", p, Qp))
    error = graph.reduced("ReduceMax", graph.node("Abs", graph.node("Sub", Qp, pQp)))
    is_exact = graph.node("Less", error, PRECISION / classes)
    done = graph.node("Or", done, is_exact) if done else is_exact
    for i, (row, point) in enumerate(zip(rows, points, strict=True)):
        here = graph.node("Gather", Qp, np.array([i], np.int64), axis=1)
        step = graph.node("Div", graph.node("Sub", pQp, here), point)
        grown = graph.node("Add", step, 1.0)
        change = graph.node(
            "Mul", step, graph.node("Add", graph.node("Mul", step, point), graph.node("Mul", here, 2.0))
        )
        pQp = graph.node("Div", graph.node("Div", graph.node("Add", pQp, change), grown), grown)
        Qp = graph.node("Div", graph.node("Add", Qp, graph.node("Mul", row, step)), grown)
        unit = np.eye(classes, dtype=np.float32)[i]
        p = graph.node("Div", graph.node("Add", p, graph.node("Mul", step, unit)), grown)
    return graph.node("Where", done, before, p), done
