"""Open sizes in edits: products of them, what they typically are, and shapes that are computed while the model runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from forge_pipeline.ir.sizes.expression import Overgrown, Whole, evaluate, names
from forge_pipeline.ir.sizes.expression import product as product_of
from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.nodes import is_op

TYPICAL: Final = 256
"""What an open extent is taken for where it is asked whether an edit pays: never whether it is right."""


def product(dims: Sequence[Whole | str | None]) -> Whole | None:
    """Return the product of dimensions, None where one is not known."""
    sizes = [dim for dim in dims if dim is not None and not isinstance(dim, str)]
    try:
        return product_of(sizes) if len(sizes) == len(dims) else None
    except Overgrown:
        return None


def typical(size: Whole) -> int | None:
    """Return a size where each open extent is TYPICAL, None where it has none then."""
    try:
        return evaluate(size, dict.fromkeys(names(size), TYPICAL))
    except Overgrown:
        return None


def with_entry(graph: Graph, shape: str, place: int, entry: int, hint: str) -> str | None:
    """Return a shape with another number at a place where it has one; itself where that is a 0 or a -1 of Reshape.

    None where what stands there is not known.
    """
    entries = graph.array(shape)
    if entries is not None:
        changed = entries.copy()
        changed[place] = entry
        return graph.add_constant(changed, hint) if entries[place] > 0 else shape
    parts = _entries(graph, shape)
    number = None if parts is None else graph.array(parts[place])
    if parts is None or number is None:
        return None
    if number[0] <= 0:
        return shape
    parts[place] = graph.add_constant(np.array([entry], number.dtype), hint)
    return str(graph.add("Concat", parts, hint, axis=0).output[0])


def has_entry(graph: Graph, shape: str, place: int) -> bool:
    """Whether ``with_entry`` can change this place of a shape."""
    parts = _entries(graph, shape)
    return graph.is_constant(shape) or (parts is not None and graph.array(parts[place]) is not None)


def _entries(graph: Graph, shape: str) -> list[str] | None:
    """Return the values that a computed shape joins, where each is one entry."""
    maker = graph.producer(shape)
    if maker is None or not is_op(maker, "Concat") or any(graph.open_shape(name) != (1,) for name in maker.input):
        return None
    return list(maker.input)


def sliced(graph: Graph, shape: str, start: int, stop: int, hint: str) -> str:
    """Return some entries of a shape: a constant, a value that it ends with, or a Slice."""
    entries = graph.array(shape)
    if entries is not None:
        return graph.add_constant(entries[start:stop].copy(), hint)
    maker = graph.producer(shape)
    if maker is not None and is_op(maker, "Concat") and graph.open_shape(shape) == (stop,):
        last = maker.input[-1]
        if graph.open_shape(last) == (stop - start,):
            return str(last)
    bounds = [graph.add_constant(np.array([place], np.int64), hint) for place in (start, stop)]
    return str(graph.add("Slice", [shape, *bounds], hint).output[0])
