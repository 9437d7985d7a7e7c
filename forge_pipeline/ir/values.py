"""Values of a graph: the inputs that a caller feeds, and names that no value has."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, ValueInfoProto


def fed(graph: GraphProto) -> list[ValueInfoProto]:
    """Return the inputs without a default, in order: initializers may be listed as inputs too."""
    stored = {tensor.name for tensor in graph.initializer}
    stored |= {tensor.values.name for tensor in graph.sparse_initializer}
    return [value for value in graph.input if value.name not in stored]


def unused(base: str, taken: set[str], *, first: int = 1) -> str:
    """Return ``base``, or with the first free number from ``first`` on behind it; from then on it is taken."""
    name, number = base, first
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    taken.add(name)
    return name
