"""Weights in the type in which kernels read them, also those that int8 does not hold.

A byte minus its zero point is anything up to 255 from zero. Where activations are widened to int16, such weights are
int16. Elsewhere they are sums of int8 ones, and the activations are read once for each: (x, x) times (a, b) is
x times (a + b). A filter of one channel has its parts below each other, and reads its rows again; others have a group's
channels several times.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from forge_pipeline.codegen.int8.isa.table import dot_product
from forge_pipeline.codegen.layout.affine import SUM_LIMIT
from forge_pipeline.codegen.layout.builder import Array, Graph, Value, shape_of
from forge_pipeline.codegen.tir.machine import Machine

LARGEST, BYTE = 127, 255
"""What every dot product can take of both signs, and what two bytes differ at most."""


def to_int8_or_int16(machine: Machine, integers: Array) -> Array | None:
    """Return weights, those of a result along all axes but the first, as int8 or int16; None where no kernel does.

    int16 are for machines that widen, or for ``in_parts``.
    """
    largest = int(abs(integers).max(initial=0))
    below = LARGEST if dot_product(machine).adds_int16 else LARGEST + 1
    if integers.max(initial=0) <= LARGEST and integers.min(initial=0) >= -below:
        return integers.astype(np.int8)
    if largest > BYTE:
        return None
    totals = abs(integers).reshape(integers.shape[0], -1).sum(axis=1)
    return None if BYTE * int(totals.max()) >= SUM_LIMIT else integers.astype(np.int16)


def split_into_parts(machine: Machine, weight: Array, axis: int) -> tuple[Array, int]:
    """Return weights whose parts in int8 follow each other along ``axis``, and how many there are."""
    if weight.dtype == np.int8 or dot_product(machine).widens:
        return weight, 1
    parts, rest = [], weight.astype(np.int64)
    while rest.any():
        parts.append(np.clip(rest, -LARGEST, LARGEST).astype(np.int8))
        rest = rest - parts[-1]
    return np.concatenate(parts, axis=axis), len(parts)


def channels_again(graph: Graph, image: Value, times: int, groups: int) -> Value:
    """Return an image with all channels of each group several times: whole blocks, where they fill them."""
    if times == 1:
        return image
    lanes = graph.machine.lanes
    if graph.is_blocked(image) and image.channels % (groups * lanes) == 0:
        return Value(blocked=_by_group(graph, image.blocked, times, groups), channels=image.channels * times)
    return Value(plain=_by_group(graph, graph.plain(image), times, groups))


def _by_group(graph: Graph, value: relax.Expr, times: int, groups: int) -> relax.Expr:
    """Return a tensor whose axis 1 has each of its ``groups`` several times."""
    if groups == 1:
        return again(graph, value, times, axis=1)
    batch, channels, *pixels = shape_of(value)
    apart = graph.emit(relax.op.reshape(value, (batch, groups, channels // groups, *pixels)))
    repeated = again(graph, apart, times, axis=2)
    return graph.emit(relax.op.reshape(repeated, (batch, channels * times, *pixels)))


def again(graph: Graph, value: relax.Expr, times: int, axis: int) -> relax.Expr:
    """Return a tensor several times, side by side."""
    if times == 1:
        return value
    return graph.emit(relax.op.concat([value] * times, axis=axis % len(shape_of(value))))
