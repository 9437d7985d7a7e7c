"""Weights of a convolution: constants, or what the model computes, as a tracker a template, or a hypernetwork a layer.

Computed weights are packed each time. What packs weights packs their numbers, from 1 on, and leaves 0 where it puts a
zero: so it says what goes where.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from forge_pipeline.codegen.layout.builder import Array, Graph, Stored, dtype_of, has_known_shape, shape_of

MOST_COMPUTED = 1 << 22
"""Elements of the largest computed weights that are packed: where each goes is stored with the library."""

NOTHING = -1 << 31
"""The place of a zero: without its sign it is the first."""


def weights_of(graph: Graph, weight: relax.Expr, rank: int) -> tuple[Array, Stored | None] | None:
    """Return constant weights and None; of those that are computed their numbers, and what takes these when packed.

    Numbers stand for weights where these are moved and filled up with zeros, not where they are multiplied. None where
    extents are not known, or there are too many.
    """
    constant = graph.look(weight).constant
    if constant is not None:
        return (constant, None) if constant.ndim == rank else None
    if not has_known_shape(weight, rank=rank, symbolic_axes=()) or dtype_of(weight) != "float32":
        return None
    extents = shape_of(weight)
    if math.prod(extents) > MOST_COMPUTED:
        return None
    numbers = np.arange(1, 1 + math.prod(extents), dtype=np.float32).reshape(extents)
    row = graph.emit(relax.op.reshape(graph.plain(graph.look(weight)), (numbers.size,)))
    return numbers, partial(_store, graph, row)


def _store(graph: Graph, row: relax.Expr, packed: Array) -> relax.Expr:
    places = np.where(packed > 0, packed - 1, NOTHING).astype(np.int32)
    return graph.kernel(_packed, row, graph.constant(places), name="pack_weights")


def _packed(row: te.Tensor, places: te.Tensor) -> te.Tensor:
    """Describe the elements of ``row`` at these places, and zeros at those below 0.

    Vectors read all of their places before they choose, so each has to be one of the row. Told so by max(), TVM takes
    it away: it knows from the choice that the place is above 0.
    """

    def element(*at: Any) -> Any:
        place = places(*at)
        return tirx.Select(place >= 0, row(place & tirx.const(~NOTHING, "int32")), tirx.const(0, row.dtype))

    return te.compute(places.shape, element, name="pack_weights")
