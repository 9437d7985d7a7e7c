"""Weights in the type in which kernels read them, also those that int8 does not hold.

A byte minus its zero point is anything up to 255 from zero. Where activations are widened to int16, such weights are
int16. Elsewhere they are sums of int8 ones, and the activations are read once for each: (x, x) times (a, b) is
x times (a + b).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forge_pipeline.codegen.graph import Array, Graph, Value, shape_of
from forge_pipeline.codegen.integer import SUM_LIMIT
from forge_pipeline.codegen.machine import Machine
from forge_pipeline.codegen.schedules.integer_dot import known_dot

if TYPE_CHECKING:
    from tvm import relax

LARGEST, BYTE = 127, 255
"""What every way to multiply bytes can take of both signs, and what differs most of two bytes."""

ADDS_PAIRS = "smull"
"""The ``dot_product`` that adds up two products in int16, where 128 times 128 twice has no room."""


def held(machine: Machine, integers: Array, *, groups: int = 1) -> Array | None:
    """Return weights, those of a result along all axes but the first, as int8 or int16; None where no kernel does.

    int16 are for machines that widen, or for ``in_parts``, which convolutions of several ``groups`` do not have.
    """
    largest = int(abs(integers).max(initial=0))
    below = LARGEST if machine.dot_product == ADDS_PAIRS else LARGEST + 1
    if integers.max(initial=0) <= LARGEST and integers.min(initial=0) >= -below:
        return integers.astype(np.int8)
    if largest > BYTE or not (known_dot(machine).widens or groups == 1):
        return None
    totals = abs(integers).reshape(integers.shape[0], -1).sum(axis=1)
    return None if BYTE * int(totals.max()) >= SUM_LIMIT else integers.astype(np.int16)


def in_parts(machine: Machine, weight: Array, axis: int) -> tuple[Array, int]:
    """Return weights whose parts in int8 follow each other along ``axis``, and how many there are."""
    if weight.dtype == np.int8 or known_dot(machine).widens:
        return weight, 1
    parts, rest = [], weight.astype(np.int64)
    while rest.any():
        parts.append(np.clip(rest, -LARGEST, LARGEST).astype(np.int8))
        rest = rest - parts[-1]
    return np.concatenate(parts, axis=axis), len(parts)


def channels_again(graph: Graph, image: Value, times: int) -> Value:
    """Return an image with all its channels several times: whole blocks, where they fill them."""
    from tvm import relax

    if times == 1:
        return image
    if graph.is_blocked(image) and image.channels % graph.machine.lanes == 0:
        repeated = graph.emit(relax.op.concat([image.blocked] * times, axis=1))
        return Value(blocked=repeated, channels=image.channels * times)
    return Value(plain=again(graph, graph.plain(image), times, axis=1))


def again(graph: Graph, value: relax.Expr, times: int, axis: int) -> relax.Expr:
    """Return a tensor several times, side by side."""
    from tvm import relax

    if times == 1:
        return value
    return graph.emit(relax.op.concat([value] * times, axis=axis % len(shape_of(value))))
