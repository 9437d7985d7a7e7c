"""Sums of floats in another order: how far apart what two programs, or one on two CPUs, compute may be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import ModelProto, helper

HALF_UNIT = 2.0**-24
"""Of float32: what one addition rounds away at most, relative to its result."""


def assert_same_sums(found: Any, wanted: Any, *, terms: int) -> None:
    """Assert that float32 arrays are sums of the same ``terms`` numbers, in whatever order each was added up.

    Each addition, on either side, rounds by half a unit of what is there so far (Higham, Accuracy and Stability of
    Numerical Algorithms, 4.2); the largest result stands for that. The terms of layers behind each other add up.
    """
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2 * terms * HALF_UNIT * float(np.abs(wanted).max(initial=0)))


def terms_of(model: ModelProto) -> int:
    """Return how many terms the sums of all layers with constant weights have, one behind the other, with a bias each.

    A function of an element, such as exp, counts as one more: its few units of error are a sum's of as many terms.
    """
    shapes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    total = len(model.graph.node)
    for node in model.graph.node:
        shape = shapes.get(node.input[1], []) if len(node.input) > 1 else []
        if len(shape) < 2:
            continue
        turned = any(item.name == "transB" and helper.get_attribute_value(item) for item in node.attribute)
        filters = shape[0] if node.op_type == "Conv" or turned else shape[-1]
        total += math.prod(shape) // filters
    return total


def assert_close(found: Any, wanted: Any, *, within: float, step: float = 0) -> None:
    """Assert that no element differs by more than ``within`` of the largest magnitude there is.

    For what several sums and functions behind each other make: each rounds relative to what it computes with, so a
    small element may owe its error to large ones that cancelled, and values of any size are compared alike. Where they
    were rounded to a grid, either side may stand on the neighbouring point: a ``step`` away, on top of that.
    """
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    finite = np.abs(wanted[np.isfinite(wanted)]).max(initial=0)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=step + within * float(finite))
